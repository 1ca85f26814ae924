"""``doctor --build`` where the toolchain is broken: the step, the reason, what to do; and exit status 1."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from cutlass_aot.builder import events
from cutlass_aot.builder.build import BuildResult
from cutlass_aot.builder.check import toolchain_test
from cutlass_aot.cli import main
from cutlass_aot.errors import LinkError, ToolchainError
from cutlass_aot.runtime.machine.installation import command_for
from tests.support.build_events import artifact, failure, planned


@pytest.fixture
def doctor(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["doctor", "--build", *arguments])
        return caught.value.code, capsys.readouterr().out

    return call


@pytest.fixture
def building(monkeypatch):
    """Replaces the build by a function of the kernel, the directory for bundles and the settings."""

    def replace(function):
        monkeypatch.setattr(
            toolchain_test,
            "build_kernels",
            lambda recipe, kernels, output, settings: function(*kernels, output, settings),
        )

    return replace


def compiled(kernel, output, settings):
    settings.tell(planned([kernel]))
    settings.tell(events.Compiled(kernel, artifact(0.0)))


def test_no_compiler(building, doctor):
    def build(kernel, output, settings):
        raise ToolchainError("the build side is not installed: ziglang missing")

    building(build)
    status, out = doctor()
    assert status == 1
    assert out.endswith(
        "build\n"
        "  failed: find the packages, digest their files: the build side is not installed: ziglang missing\n"
        f"  install what is missing: {command_for('build', again=True)}\n"
    )


def test_a_dsl_that_cannot_be_imported(building, doctor):
    def build(kernel, output, settings):
        settings.tell(planned([kernel]))
        raise ToolchainError("the build side cannot be imported: ImportError: libmlir.so")

    building(build)
    status, out = doctor("--json")
    found = json.loads(out)["toolchain_test"]
    assert (status, found["failed"], list(found["seconds"])) == (1, "import", ["find"])
    assert found["problem"].endswith("libmlir.so")
    assert "cannot be imported" in found["advice"]


def test_a_kernel_that_does_not_compile(building, doctor, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("name\nkey\nreason\n\nptxas fatal: <no such thing>\n")

    def build(kernel, output, settings):
        failed = failure(kernel, log)
        settings.tell(planned([kernel]))
        settings.tell(events.Failed(failed))
        settings.tell(events.Finished(output / "toolchain-test", 1, 0, 1, False))
        return BuildResult(output / "toolchain-test", 1, 0, (failed,), False)

    building(build)
    status, out = doctor()
    assert status == 1
    assert "failed: compile a kernel: ValueError: no such instruction\n    " in out
    assert "  ptxas fatal: <no such thing>\n" in out
    assert "install what this release pins" in out


def test_a_compiler_that_takes_too_long(building, doctor, tmp_path):
    (tmp_path / "x.log").write_text("")

    def build(kernel, output, settings):
        assert settings.timeout == 5
        failed = failure(kernel, tmp_path / "x.log", "timed out after 5 s")
        settings.tell(events.Failed(failed))
        return BuildResult(output / "toolchain-test", 1, 0, (failed,), False)

    building(build)
    _, out = doctor("--timeout", "5")
    assert "--timeout gives it more seconds" in out


def test_a_linker_that_fails(building, doctor):
    def build(kernel, output, settings):
        compiled(kernel, output, settings)
        raise LinkError("zig ended with 1")

    building(build)
    found = json.loads(doctor("--json")[1])["toolchain_test"]
    assert (found["failed"], found["problem"]) == ("link", "zig ended with 1")
    assert set(found["seconds"]) == {"find", "import", "compile"}


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (subprocess.CompletedProcess([], -11, "", ""), "ended with -11"),
        (subprocess.CompletedProcess([], 1, "", "OSError: GLIBC_2.28 not found\n"), "GLIBC_2.28 not found"),
        (subprocess.TimeoutExpired([], 120), "took longer than 120 s"),
    ],
)
def test_a_library_that_cannot_be_loaded(building, doctor, monkeypatch, outcome, problem):
    def build(kernel, output, settings):
        compiled(kernel, output, settings)
        settings.tell(events.Finished(output / "toolchain-test", 1, 1, 0, True))
        return BuildResult(output / "toolchain-test", 1, 1, (), True)

    def run(*_, **__):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    building(build)
    libraries = {os.uname().machine: "lib/x86_64/sm_90a-0.so"}
    monkeypatch.setattr(toolchain_test, "unpack_bundle", lambda bundle, output: [{"libraries": libraries}])
    monkeypatch.setattr(toolchain_test.subprocess, "run", run)
    found = json.loads(doctor("--json")[1])["toolchain_test"]
    assert found["failed"] == "load"
    assert problem in found["problem"]
    assert set(found["seconds"]) == {"find", "import", "compile", "link"}
