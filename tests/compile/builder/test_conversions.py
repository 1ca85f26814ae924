"""Conversions of f16 and bf16 that host code calls, against torch's."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from cutlass_aot.builder import native
from cutlass_aot.builder.link.linker import LinkToolchain

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile

# An x86-64 CPU need not have instructions for them, so that the compiler calls the functions.
CALLS = "#include <stdint.h>\n" + "".join(
    f"void {name}(const {given} *from, {made} *to, long count) "
    "{ for (long i = 0; i < count; i++) to[i] = from[i]; }\n"
    for name, given, made in (
        ("f32_to_f16", "float", "_Float16"),
        ("f64_to_f16", "double", "_Float16"),
        ("f32_to_bf16", "float", "__bf16"),
        ("f64_to_bf16", "double", "__bf16"),
        ("f16_to_f32", "_Float16", "float"),
    )
)


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Any, Any], Any]:
    """Convert a tensor to an element type by a function of the library."""
    folder = tmp_path_factory.mktemp("conversions")
    (folder / "calls.c").write_text(CALLS)
    zig, library = LinkToolchain.detect().zig, folder / "conversions.so"
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}
    target = ["-target", "x86_64-linux-gnu.2.28", "-mcpu=x86_64"]
    objects = []
    for source in (folder / "calls.c", native.FOLDER / "conversions.c"):
        objects.append(str(folder / f"{source.stem}.o"))
        command = [str(zig), "cc", *target, "-O2", "-fPIC", "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, env=caches, check=True)
    # Nothing of the compiler's own, which would have the functions too.
    flags = ["-shared", "-nostdlib", "-lc", "-Wl,-z,defs"]
    subprocess.run([str(zig), "cc", *target, *flags, *objects, "-o", str(library)], env=caches, check=True)
    loaded = ctypes.CDLL(str(library))

    def converted(name: str, given: Any, dtype: Any) -> Any:
        made = torch.empty(given.shape, dtype=dtype)
        call = getattr(loaded, name)
        call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
        call(given.data_ptr(), made.data_ptr(), given.numel())
        return made

    return converted


def same(found: Any, expected: Any) -> bool:
    """Whether the bits are the same, but for those of what is not a number."""
    numbers = ~expected.isnan()
    bits = torch.int16 if found.element_size() == 2 else torch.int32
    return bool((found.isnan() == ~numbers).all()) and torch.equal(
        found.view(bits)[numbers], expected.view(bits)[numbers]
    )


def every(dtype: Any) -> Any:
    """Every number of 16 bits."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_numbers_of_32_and_64_bits_are_rounded_as_torch_rounds_them(
    convert: Callable[[str, Any, Any], Any], name: str
) -> None:
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[name]
    exact = every(dtype).to(torch.float64)
    finite = exact[exact.isfinite()].sort().values.unique()
    ties = (finite[1:] + finite[:-1]) / 2
    floats = torch.randint(-(2**31), 2**31, (1 << 20,), generator=torch.Generator().manual_seed(0))
    given = torch.cat([exact, ties, floats.to(torch.int32).view(torch.float32).to(torch.float64)])
    single = given.to(torch.float32)
    assert same(convert(f"f32_to_{name}", single, dtype), single.to(dtype))
    # What is a double alone, a little beside a tie, is not rounded twice.
    beside = torch.cat([ties.nextafter(torch.full_like(ties, bound)) for bound in (-torch.inf, torch.inf)])
    nearest = torch.cat([finite[:-1], finite[1:]]).copysign(beside)
    assert same(convert(f"f64_to_{name}", beside, dtype), nearest.to(dtype))
    assert same(convert(f"f64_to_{name}", exact, dtype), exact.to(dtype))


def test_every_f16_is_extended_exactly(convert: Callable[[str, Any, Any], Any]) -> None:
    given = every(torch.float16)
    assert same(convert("f16_to_f32", given, torch.float32), given.to(torch.float32))
