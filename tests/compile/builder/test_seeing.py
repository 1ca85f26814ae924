"""A real build and a real doctor, seen: JSON lines, a page, the steps of the toolchain self-test."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=300,
        check=False,
    )


def test_a_build_in_json_with_a_page_and_then_one_with_nothing_to_do(tmp_path):
    manifest = REPOSITORY / "manifests" / "smoke.toml"
    places = ("--store", tmp_path / "store", "--out", tmp_path / "out")
    page = tmp_path / "pages" / "smoke.html"
    done = command("build", manifest, *places, "--json", "--report", page)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [record["event"] for record in records]
    assert kinds[0] == "enumerating"
    assert kinds.count("compiled") == 5
    assert kinds.count("linked") == 2
    assert records[-1] | {"at": 0} == {
        "event": "finished", "at": 0, "bundle": str(tmp_path / "out" / "smoke"), "kernels": 5, "compiled": 5,
        "failed": 0, "written": True,
    }  # fmt: skip
    assert all(record["registers"] > 0 for record in records if record["event"] == "compiled")
    first = page.read_text()
    assert "bundle written" in first
    assert "PersistentDenseGemm-128x128x64" in first

    again = command("build", manifest, *places, "--json")
    assert [json.loads(line)["event"] for line in again.stdout.splitlines()] == ["up_to_date", "finished"]
    shown = command("build", manifest, *places, "--report", page)
    assert shown.returncode == 0, shown.stderr
    assert "0 compiled, up to date" in shown.stdout
    second = page.read_text()
    assert ">up to date<" in second
    assert "PersistentDenseGemm-128x128x64" in second


def test_the_doctor_tries_the_toolchain():
    done = command("doctor", "--build", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    test = json.loads(done.stdout)["toolchain_test"]
    assert set(test["seconds"]) == {"find", "import", "compile", "link", "load"}
    assert test["seconds"]["compile"] > 0
    assert (test["failed"], test["problem"], test["advice"]) == ("", "", "")
