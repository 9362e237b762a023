"""What a run computes: its plan and the fingerprints of its data and model, stored in manifest.json."""

from __future__ import annotations

import importlib.metadata
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from shardmc.errors import RunError

SCHEMA = 1
"""Version of the layout of a run folder; a folder of another version is refused."""

_MOST_SHARDS = 10_000_000
_PACKAGES = ("shardmc", "jax", "jaxlib", "numpy", "scipy", "blackjax", "numpyro")


def package_versions() -> dict[str, str]:
    """Versions of the packages that draws depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Manifest:
    """What a run computes.

    `plan` holds plain values (numbers, text, lists, tables of them), among them the number of `shards`. Plan, data,
    model and schema must be equal for a run to be resumed; `versions` may differ, and a note says so.

    >>> first = Manifest({"shards": 100, "seed": 0}, data="3f2a", model="b81c")
    >>> Manifest.from_json(first.to_json(), "manifest.json") == first
    True
    >>> first.differences(Manifest({"shards": 100, "seed": 1}, data="3f2a", model="b81c"))
    ['plan seed is 0 there and 1 here']
    """

    plan: Mapping[str, Any]
    data: str
    model: str
    versions: Mapping[str, str] = field(default_factory=package_versions)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The run's own name. Every file of the run repeats it, so a file of another run is recognised."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for name, (valid, wanted) in _CHECKS.items():
            value = getattr(self, name)
            if not valid(value):
                raise RunError(f"A manifest's {name!r} must be {wanted}, not {_shown(value)}.")

    @property
    def num_shards(self) -> int:
        return self.plan["shards"]

    def to_json(self) -> str:
        return json.dumps(self._plain(), indent=2, sort_keys=True, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, name: str) -> Manifest:
        """Read a manifest. `name` is the name of its file, for error messages."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"{name} is not JSON, so it does not say what the run computes. {_ADVICE}"
            ) from error
        if not isinstance(values, dict):
            raise RunError(
                f"{name} is not a manifest: it holds a {type(values).__name__}, not a table. {_ADVICE}"
            )
        # The version is checked first: another version may have other keys.
        if "schema" in values and values["schema"] != SCHEMA:
            raise RunError(
                f"{name} has schema version {_shown(values['schema'])}; this version of shardmc reads {SCHEMA}. "
                "Use the version that made it, or another folder."
            )
        names = [each.name for each in fields(Manifest)]
        missing = [each for each in names if each not in values]
        if missing:
            raise RunError(f"{name} lacks {', '.join(map(repr, missing))}. {_ADVICE}")
        try:
            return Manifest(**{each: values[each] for each in names})
        except RunError as error:
            raise RunError(f"{name} is not valid: {error} {_ADVICE}") from error

    def differences(self, call: Manifest) -> list[str]:
        """What differs between this manifest, read from a folder, and that of the present call."""
        there, here = self._plain(), call._plain()
        found = [sentence for name, sentence in _OTHER.items() if there[name] != here[name]]
        if there["schema"] != here["schema"]:
            found.append(f"schema is {there['schema']} there and {here['schema']} here")
        return found + plan_differences(there["plan"], here["plan"])

    def _plain(self) -> dict[str, Any]:
        # Through JSON and back, so that a tuple of the call equals the list that was read.
        return json.loads(json.dumps({each.name: getattr(self, each.name) for each in fields(self)}))


_ADVICE = "Repair it from a copy, or use another folder."
_ABSENT = "absent"
OTHER_DATA = "its rows or columns are different"
_OTHER = {"data": OTHER_DATA, "model": "its model or priors are different"}


def plan_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What differs between the plan in a folder and that of the present call.

    >>> plan_differences({"seed": 0, "draws": 100}, {"seed": 1, "draws": 100})
    ['plan seed is 0 there and 1 here']
    """
    pairs = [(key, there.get(key, _ABSENT), here.get(key, _ABSENT)) for key in sorted({*there, *here})]
    return [f"plan {key} is {_shown(a)} there and {_shown(b)} here" for key, a, b in pairs if not _same(a, b)]


def _same(a: Any, b: Any) -> bool:
    # In Python True == 1; in a plan they differ.
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _shown(value: object) -> str:
    text = value if value is _ABSENT else ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_plan(value: object) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    shards = value.get("shards")
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= _MOST_SHARDS:
        return False
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _is_versions(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "schema": (lambda value: type(value) is int and value == SCHEMA, f"the number {SCHEMA}"),
    "plan": (_is_plan, f"a table of plain values with 'shards' from 1 to {_MOST_SHARDS}"),
    "data": (lambda value: isinstance(value, str) and value != "", "a fingerprint (text)"),
    "model": (lambda value: isinstance(value, str) and value != "", "a fingerprint (text)"),
    "versions": (_is_versions, "a table of package names and versions"),
    "created": (_is_time, "a time with its zone (ISO 8601)"),
    "run": (
        lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None,
        "32 hexadecimal digits",
    ),
}
