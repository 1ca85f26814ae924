"""The rule over a table of machines: each bundle's answer, the target that serves each GPU, every reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.cli import main
from cutlass_aot.doctor.facts import facts_of, facts_record
from cutlass_aot.doctor.warnings import warnings
from cutlass_aot.runtime.machine.compatibility import Requirements, decide
from cutlass_aot.schema.bundles.catalog import VersionRequirements
from cutlass_aot.schema.targets import KNOWN_TARGETS
from tests.support.bundles import designs, write_bundle

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = tomllib.loads((Path(__file__).parent / "machines.toml").read_text(encoding="utf-8"))
REQUIREMENTS = VersionRequirements(cuda_driver="12.0", tvm_ffi="0.1.15", glibc="2.28")


def facts(machine: dict[str, Any]) -> dict[str, Any]:
    """A machine of the table as a file of facts has it."""
    return {**machine["facts"], **{key: machine[key] for key in ("driver", "gpus") if key in machine}}


CASES = [
    pytest.param(facts(machine), bundle, machine[bundle], id=f"{machine['name']}: {bundle}")
    for machine in TABLE["machines"]
    for bundle in TABLE["bundles"]
    if bundle in machine
]


@pytest.mark.parametrize(("record", "name", "expected"), CASES)
def test_the_answer(record: dict[str, Any], name: str, expected: dict[str, Any]) -> None:
    bundle = TABLE["bundles"][name]
    answer = decide(facts_of(record, "table"), Requirements(bundle["targets"], bundle["hosts"], REQUIREMENTS))
    assert [gpu.target or "" for gpu in answer.gpus] == expected["targets"]
    assert answer.accepted is (any(expected["targets"]) and not expected.get("refused", False))
    found = [*answer.reasons, *(reason for gpu in answer.gpus for reason in gpu.reasons)]
    reasons = list(dict.fromkeys(map(str, found)))
    pieces = expected.get("reasons", [])
    assert len(reasons) == len(pieces), reasons
    for reason, piece in zip(reasons, pieces, strict=True):
        assert piece in reason
    assert answer.why == "; ".join(reasons)
    said = warnings(facts_of(record, "table"))
    assert len(said) == len(expected.get("warnings", [])), said
    for warning, piece in zip(said, expected.get("warnings", []), strict=True):
        assert piece in warning
    for reason in found:
        assert reason.problem
        assert reason.advice


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    for name, bundle in TABLE["bundles"].items():
        kernels = [kernel for target in bundle["targets"] for kernel in designs([(64, 128)], target=target)]
        write_bundle(folder / name, kernels, requirements=REQUIREMENTS, hosts=tuple(bundle["hosts"]))
    return folder


@pytest.mark.parametrize(("record", "name", "expected"), CASES)
def test_the_command_line_says_the_same(
    record: dict[str, Any],
    name: str,
    expected: dict[str, Any],
    bundles: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps(record))
    accepted = any(expected["targets"]) and not expected.get("refused", False)
    arguments = ["doctor", str(bundles / name), "--facts", str(file)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    assert ended.value.code == (0 if accepted else 1)
    (answer,) = json.loads(capsys.readouterr().out)["bundles"]
    assert [gpu["target"] or "" for gpu in answer["gpus"]] == expected["targets"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == (0 if accepted else 1)
    printed = capsys.readouterr().out
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert ("\n  yes" in printed) is accepted
    text = " ".join(printed.split())
    for target in filter(None, expected["targets"]):
        assert f"{target} (" in text
    for piece in expected.get("warnings", []):
        assert piece in text
    for reason in expected.get("reasons", []):
        problem, _, advice = reason.partition(": ")
        assert problem in text
        assert not advice or f"next: {advice}" in text


@pytest.mark.parametrize("machine", TABLE["machines"], ids=lambda machine: machine["name"])
def test_facts_go_through_plain_data_unchanged(machine: dict[str, Any]) -> None:
    found = facts_of(facts(machine), "table")
    assert facts_of(json.loads(json.dumps(facts_record(found))), "record") == found


def test_the_table_is_large_and_names_nothing_twice() -> None:
    names = [machine["name"] for machine in TABLE["machines"]]
    assert len(set(names)) == len(names) >= 40
    keys = {"name", "facts", "driver", "gpus", *TABLE["bundles"]}
    for machine in TABLE["machines"]:
        assert set(machine) <= keys
        for bundle in set(machine) & set(TABLE["bundles"]):
            assert set(machine[bundle]) <= {"targets", "reasons", "warnings", "refused"}
    targets = {target for bundle in TABLE["bundles"].values() for target in bundle["targets"]}
    assert targets <= set(KNOWN_TARGETS)
