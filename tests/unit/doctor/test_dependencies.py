"""Which installed versions are those that a release asks for."""

from __future__ import annotations

from importlib import metadata

import pytest

from cutlass_aot.doctor import dependencies
from cutlass_aot.doctor.dependencies import differing, expected_versions, satisfies
from cutlass_aot.manifest.toml import parse_toml
from tests.support.paths import REPOSITORY


@pytest.mark.parametrize(
    ("version", "expected", "good"),
    [
        ("4.8.1", "==4.8.1", True),
        ("4.8.1+cu13", "==4.8.1", True),
        ("4.8.1.post1", "==4.8.1", False),
        ("4.8.10", "==4.8.1", False),
        ("13.0.88", ">=13.0,<14", True),
        ("13.10", ">=13.9,<14", True),
        ("14.0", ">=13.0,<14", False),
        ("12.9", ">=13.0,<14", False),
        ("2.13.0+cpu", ">=2.6", True),
        ("0", "", True),
    ],
)
def test_versions_compare_as_numbers(version, expected, good):
    assert satisfies(version, expected) is good


def test_what_it_cannot_judge_is_refused():
    with pytest.raises(ValueError, match="'~=1' is not a version clause"):
        satisfies("1", "~=1")
    with pytest.raises(ValueError, match="is not a version"):
        satisfies("unknown", ">=1")


def test_requirements_of_the_runtime_and_the_build_extra_are_read(monkeypatch):
    monkeypatch.setattr(
        dependencies.metadata,
        "requires",
        lambda name: [
            "msgpack>=1.0.5",
            "tomli>=2.0; python_version < '3.11'",
            'nvidia-cutlass-dsl==4.8.1 ; extra == "build"',
            "Nvidia_Cuda_crt (>=13.0, <14); extra == 'build'",
            "torch[x]; extra == 'build'",
            "ruff>=0.9; extra == 'dev'",
        ],
    )
    assert expected_versions() == {
        "msgpack": ">=1.0.5",
        "nvidia-cuda-crt": ">=13.0,<14",
        "nvidia-cutlass-dsl": "==4.8.1",
        "torch": "",
    }


def test_without_metadata_nothing_is_expected(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(dependencies.metadata, "requires", missing)
    assert expected_versions() == {}


def test_what_differs_is_named_with_both_versions():
    expected = {"a": "==1", "b": "==1", "c": "==1", "d": ">=1"}
    assert differing({"a": "1", "b": "2", "c": None, "d": "odd", "e": "9"}, expected) == [
        {"package": "b", "installed": "2", "expected": "==1"},
        {"package": "d", "installed": "odd", "expected": ">=1"},
    ]


def test_what_the_project_asks_for_can_be_judged():
    path = REPOSITORY / "pyproject.toml"
    project = parse_toml(path.read_bytes(), "pyproject.toml")["project"]
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["build"]):
        match = dependencies._REQUIREMENT.fullmatch(requirement)
        assert match is not None
        assert satisfies("1.0", match[2].strip()) in (True, False)
