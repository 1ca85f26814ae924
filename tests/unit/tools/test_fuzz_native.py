"""The native sources under sanitizers: the short form, and that the tool finds what it is for."""

from __future__ import annotations

import re
import shutil

import pytest

pytest.importorskip("ziglang")

from cutlass_aot.builder import native as sources
from tools.fuzz import native

COMPILER = native.compiler()
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler with sanitizers")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program under each sanitizer."""
    folder = tmp_path_factory.mktemp("native")
    return {name: native.compile_program(COMPILER, name, folder / name) for name in native.SANITIZERS}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("sanitizer", "what"), native.PROGRAMS)
def test_no_sanitizer_says_anything(programs, sanitizer, what, seed):
    assert native.run_program(programs[sanitizer], what, seed, 20_000, 60) == ""


def changed(folder, name, old, new):
    """The sources, with one of them changed in one place."""
    shutil.copytree(sources.FOLDER, folder / "sources")
    path = folder / "sources" / name
    text = path.read_text()
    assert text.count(old) == 1, text.count(old)
    path.write_text(text.replace(old, new))
    return [folder / "sources" / source.name for source in native.SOURCES]


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("launcher.c", "if (tensor->ndim < 0)", "if (0)", "signed integer overflow"),
        ("launcher.c", "operand->divisibility > MAX_EXTENT", "0", "signed integer overflow"),
        ("launcher.c", "operand->rank > MAX_RANK", "operand->rank > 99", "out of bounds|overflow"),
        ("launcher.c", "operand->of < operands", "operand->of < 9 * operands", "heap-buffer-overflow|SEGV"),
        ("dispatch_cache.c", "tensor->ndim < 0 || tensor->ndim > MAX_RANK ||", "", "negative-size|overflow"),
        ("dispatch_cache.c", "  TVMFFIObjectIncRef(function);\n  made->", "  made->", "heap-use-after-free"),
        ("dispatch_cache.c", "  TVMFFIObjectIncRef(function);\n  *made", "  *made", "heap-use-after-free"),
        ("select.c", "costs.size != kernels * sizeof(struct costs)", "0", "heap-buffer-overflow"),
        ("select.c", "if (number < made->kernel_count)", "if (1)", "heap-buffer-overflow|SEGV"),
        ("select.c", "end <= begin || end > count", "end <= begin", "heap-buffer-overflow|SEGV"),
        ("select.c", "(size_t)number >= selection->kernel_count", "0", "heap-buffer-overflow|SEGV"),
        ("select.c", "  TVMFFIObjectIncRef(launch);\n  return_", "  return_", "heap-use-after-free"),
    ],
)
def test_what_is_wrong_in_a_call_is_found(programs, tmp_path, name, old, new, found):
    files = changed(tmp_path, name, old, new)
    program = native.compile_program(COMPILER, "address", tmp_path / "made", files, programs["address"])
    words = [native.run_program(program, "calls", seed, 10_000, 60) for seed in range(3)]
    assert any(re.search(found, text) for text in words), words


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (
            "dispatch_cache.c",
            "__atomic_compare_exchange_n(head, &made->next, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)",
            "(*head = made, 1)",
        ),
        (
            "dispatch_cache.c",
            "__atomic_compare_exchange_n(last, &next, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)",
            "((next = *last) ? 0 : (*last = made, 1))",
        ),
        (
            "select.c",
            "__atomic_load_n(&selection->kernels[number].launch, __ATOMIC_ACQUIRE)",
            "selection->kernels[number].launch",
        ),
        (
            "select.c",
            "__atomic_store(&selection->residuals[time], &residual, __ATOMIC_RELAXED)",
            "selection->residuals[time] = residual",
        ),
        (
            "shim.c",
            "    pthread_mutex_lock(&load_lock);\n    if (!is_loaded(library, device))",
            "    if (!is_loaded(library, device))",
        ),
    ],
)
def test_a_race_is_found(tmp_path, name, old, new):
    files = changed(tmp_path, name, old, new)
    program = native.compile_program(COMPILER, "thread", tmp_path / "made", files)
    # Threads that share few processors seldom meet: as often as it takes.
    words = (native.run_program(program, "threads", seed, 20_000, 60) for seed in range(15))
    assert any("data race" in text or "unlock of an unlocked mutex" in text for text in words)
