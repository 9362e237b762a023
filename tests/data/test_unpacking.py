"""Compressed draws that are damaged or locked are refused in one sentence."""

import bz2
import gzip
import lzma
import zipfile

import numpy as np
import pytest

import shardmc
from shardmc.errors import RunError

CONTENT = b"a,b\n" + b"".join(
    b"%.6f,%.6f\n" % tuple(pair) for pair in np.random.default_rng(0).normal(size=(500, 2))
)


def packed(path, kind):
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("draws.csv", CONTENT)
    else:
        path.write_bytes({"gz": gzip, "bz2": bz2, "xz": lzma}[kind].compress(CONTENT))


def flipped(content, start):
    return (
        content[:start] + bytes(byte ^ 0xFF for byte in content[start : start + 40]) + content[start + 40 :]
    )


@pytest.mark.parametrize("damage", ["middle", "cut"])
@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damaged_draws(tmp_path, kind, damage):
    path = tmp_path / f"draws.csv.{kind}"
    packed(path, kind)
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] if damage == "cut" else flipped(content, half))
    with pytest.raises(RunError, match=r"draws\.csv.* cannot be read as CSV"):
        shardmc.combine([path, path])


def test_a_damaged_archive(tmp_path):
    path = tmp_path / "draws.csv.zip"
    packed(path, "zip")
    content = path.read_bytes()
    path.write_bytes(flipped(content, len(content) // 2))
    with pytest.raises(RunError, match=r"draws\.csv.* cannot be read as CSV"):
        shardmc.combine([path, path])


def test_an_archive_with_a_password(tmp_path):
    path = tmp_path / "draws.csv.zip"
    packed(path, "zip")
    content = bytearray(path.read_bytes())
    # The flag of encryption, in the header of the file and in the directory.
    content[content.index(b"PK\x03\x04") + 6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(bytes(content))
    with pytest.raises(RunError, match="cannot be unpacked: it must hold one file, without a password"):
        shardmc.combine([path, path])
