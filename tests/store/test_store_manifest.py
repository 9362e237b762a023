"""A manifest survives JSON, and refuses what is not one with a sentence."""

import json
from dataclasses import replace

import pytest

from shardmc.errors import RunError
from shardmc.store.records import SCHEMA, Manifest, package_versions
from shardmc.store.run import Run, status


def test_json_and_back(manifest):
    assert Manifest.from_json(manifest.to_json(), "manifest.json") == manifest


def test_a_manifest_with_a_field_of_an_earlier_version_is_read(manifest):
    text = json.dumps({**json.loads(manifest.to_json()), "layout": {}})
    assert Manifest.from_json(text, "manifest.json") == manifest


def test_runs_have_names_of_their_own():
    first, second = (Manifest({"shards": 1}, data="d", model="m") for _ in range(2))
    assert first.run != second.run
    assert first.differences(second) == []


def test_versions_are_those_installed():
    assert {"shardmc", "numpy", "jax"} <= package_versions().keys()


def test_a_tuple_of_the_call_equals_the_list_that_was_read(manifest):
    call = replace(manifest, plan={**manifest.plan, "levels": (0.05, 0.95)})
    assert Manifest.from_json(call.to_json(), "manifest.json").differences(call) == []


@pytest.mark.parametrize(
    ("there", "here", "sentence"),
    [
        ({"seed": 0}, {"seed": 1}, "plan seed is 0 there and 1 here"),
        ({"seed": 0}, {"seed": 0.5}, "plan seed is 0 there and 0.5 here"),
        ({"keep": 1}, {"keep": True}, "plan keep is 1 there and True here"),
        ({"keep": None}, {}, "plan keep is None there and absent here"),
        ({}, {"keep": 0.2}, "plan keep is absent there and 0.2 here"),
        ({"combiner": {"scale": 1}}, {"combiner": {"scale": 2}}, "plan combiner is {'scale': 1} there and"),
    ],
)
def test_differences_name_both_values(there, here, sentence):
    stored, call = (Manifest({"shards": 2, **plan}, data="d", model="m") for plan in (there, here))
    (difference,) = stored.differences(call)
    assert difference.startswith(sentence)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", True),
        ("plan", []),
        ("plan", {}),
        ("plan", {"shards": 0}),
        ("plan", {"shards": True}),
        ("plan", {"shards": "5"}),
        ("plan", {"shards": "../../etc"}),
        ("plan", {"shards": 10**12}),
        ("data", None),
        ("data", ""),
        ("model", 3),
        ("versions", {"jax": 0.1}),
        ("created", "yesterday"),
        ("created", "2026-01-01T00:00:00"),
        ("run", "../../../etc"),
        ("run", "0" * 31),
    ],
)
def test_a_field_that_is_wrong_is_named(manifest, field, value):
    text = json.dumps({**json.loads(manifest.to_json()), field: value})
    with pytest.raises(RunError, match=f"manifest.json is not valid: .*'{field}' must be"):
        Manifest.from_json(text, "manifest.json")


@pytest.mark.parametrize("field", ["plan", "data", "model", "versions", "created", "run", "schema"])
def test_a_field_that_is_missing_is_named(manifest, field):
    values = json.loads(manifest.to_json())
    del values[field]
    with pytest.raises(RunError, match=f"manifest.json lacks '{field}'"):
        Manifest.from_json(json.dumps(values), "manifest.json")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"\x80\x04K\x01.", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[1]", "holds a list"),
        (b'{"schema": 99}', f"schema version 99; this version of shardmc reads {SCHEMA}"),
        (b'{"schema": "1"}', "schema version '1'"),
    ],
)
def test_what_is_no_manifest_is_refused(finished_run, manifest, text, sentence):
    (finished_run / "manifest.json").write_bytes(text)
    for use in (lambda: Run.open(finished_run, manifest), lambda: status(finished_run)):
        with pytest.raises(RunError, match=sentence):
            use()


def test_a_plan_holds_plain_values_only():
    for value in (object(), float("nan"), {1, 2}):
        with pytest.raises(RunError, match="a table of plain values"):
            Manifest({"shards": 1, "sampler": value}, data="d", model="m")
