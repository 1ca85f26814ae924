"""The suite of hazards, against our own keys and store, and against a cache that forgets on purpose."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile

MAY_BE_SHARED = ("should be shared", "shared or refused")

JOBS = 1
"""Processes that import the DSL: other tests run beside these."""


def hazards():
    return importlib.import_module("tools.check.cache_conformance.hazards").HAZARDS


@pytest.fixture(scope="module")
def conformance():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.fspath(REPOSITORY))
        yield importlib.import_module("tools.check.cache_conformance.suite")


def test_our_cache_handles_every_hazard(conformance):
    results = conformance.Suite("cutlass-aot", JOBS).run()
    failed = {result.hazard: result.detail for result in results if not result.passed}
    assert not failed
    # What is refused is safe, but says that programs which do so cannot be prebuilt.
    assert [r.hazard for r in results if r.verdict == "refused"] == ["tensor in a closure"]
    assert not [result for result in results if result.verdict == "not applicable"]


def test_a_cache_that_forgets_fails_every_hazard_that_asks_for_care(conformance):
    """A hazard that it passed would test nothing."""
    checked = [hazard for hazard in hazards() if hazard.expected.value not in MAY_BE_SHARED]
    results = conformance.Suite("none-forgets", JOBS).run(checked)
    assert {result.hazard: result.verdict for result in results} == {
        hazard.name: "NOT HANDLED" for hazard in checked
    }
    assert len(checked) > 30


def test_the_programs_of_hazards_are_what_they_say(conformance):
    """A few of them are really compiled; all are with ``python tools/check/cache_conformance --compile``."""
    few = [hazard for hazard in hazards() if hazard.name in ("environment", "1 and True", "dynamic scalar")]
    assert [result.verdict for result in conformance.Suite("compiled", JOBS).run(few)] == ["handled"] * 3


def test_a_cache_of_somebody_elses_is_found_by_module_and_attribute(tmp_path):
    (tmp_path / "theirs.py").write_text(
        "from tools.check.cache_conformance.caches import Forgetful\n\n"
        "class Theirs(Forgetful):\n    name = 'theirs'\n"
    )
    result = subprocess.run(
        [
            sys.executable,
            REPOSITORY / "tools" / "check" / "cache_conformance",
            "--cache",
            "theirs:Theirs",
            "--hazard",
            "global",
            "--json",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.fspath, (REPOSITORY, tmp_path)))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert '"verdict": "NOT HANDLED"' in result.stdout
