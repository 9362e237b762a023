"""Arrow columns: what they become on the device, and as NumPy arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmc.data.columns import Column, device_type
from shardmc.errors import DataError


def as_column(name: str, kind: pa.DataType) -> Column:
    """What an Arrow column becomes on the device. A column that is not numeric is an error with advice."""
    plain = _plain(kind)
    if pa.types.is_fixed_size_list(plain):
        inner = as_column(name, plain.value_type)
        return Column(name, inner.dtype, (plain.list_size, *inner.shape), from_table=True)
    if not is_number_type(plain):
        raise DataError(f"Column {name!r} holds {_what(kind)}; {_advice(kind)}")
    return Column(name, device_type(name, _numpy_type(plain)), from_table=True)


def is_number_type(kind: pa.DataType) -> bool:
    """Whether entries of this type are numbers, or lists of numbers of a fixed size."""
    plain = _plain(kind)
    if pa.types.is_fixed_size_list(plain):
        return is_number_type(plain.value_type)
    numeric = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(check(plain) for check in numeric)


def as_numpy(array: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Entries as a NumPy array. Numbers with missing entries become floats with NaN.

    Examples
    --------
    >>> as_numpy(pa.array([1, None]))
    array([ 1., nan])
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # no chunks, or too much text for one chunk
            return np.concatenate([as_numpy(chunk) for chunk in array.chunks])
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return as_numpy(array.dictionary_decode())
    if pa.types.is_fixed_size_list(kind):
        whole = array.fill_null([None] * kind.list_size) if array.null_count else array
        entries = as_numpy(whole.flatten())
        return entries.reshape(len(array), kind.list_size, *entries.shape[1:])
    if (
        pa.types.is_decimal(kind)
        or (pa.types.is_boolean(kind) and array.null_count)
        or pa.types.is_null(kind)
    ):
        array = pc.cast(pc.cast(array, pa.int8()) if pa.types.is_boolean(kind) else array, pa.float64())
    elif pa.types.is_temporal(kind):
        array = pc.cast(array, pa.int64() if kind.bit_width == 64 else pa.int32())
    return array.to_numpy(zero_copy_only=False)


def as_arrow(array: np.ndarray) -> pa.Array:
    """A NumPy array, one entry per row, as an Arrow array. Further axes become lists of a fixed size.

    Examples
    --------
    >>> as_arrow(np.zeros((4, 2))).type
    FixedSizeListType(fixed_size_list<item: double>[2])
    """
    if array.ndim == 1:
        return pa.array(array.tolist() if _holds_nul(array) else array)
    inner = as_arrow(array.reshape(-1, *array.shape[2:]))
    return pa.FixedSizeListArray.from_arrays(inner, array.shape[1])


def _holds_nul(array: np.ndarray) -> bool:
    """Whether any text continues after a NUL. Arrow would cut it there, and two levels could become one."""
    if array.dtype.kind != "U" or not array.size or array.dtype.itemsize == 0:
        return False
    codes = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), -1)
    return bool(((codes[:, :-1] == 0) & (codes[:, 1:] != 0)).any())


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the entries: the values of a category, the storage of an extension."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _numpy_type(kind: pa.DataType) -> np.dtype:
    return np.dtype(np.float64) if pa.types.is_decimal(kind) else np.dtype(kind.to_pandas_dtype())


def _what(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return f"categories ({kind.value_type})"
    if pa.types.is_duration(kind):
        return f"durations ({kind})"
    if pa.types.is_temporal(kind):
        return f"dates or times ({kind})"
    if pa.types.is_null(kind):
        return "nothing but missing values"
    if pa.types.is_nested(kind):
        return f"lists or records ({kind})"
    return (
        f"text ({kind})" if pa.types.is_large_string(kind) or pa.types.is_string(kind) else f"{kind} entries"
    )


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_duration(kind):
        return "convert it to numbers first, such as seconds."
    if pa.types.is_temporal(kind):
        return "convert it to numbers first, such as days since some date."
    if pa.types.is_null(kind) or pa.types.is_nested(kind):
        return "leave it out of the columns used, or convert it to numbers first."
    return "encode its levels as integers first, or leave it out of the columns used."
