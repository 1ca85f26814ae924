"""What docs/reference/sm90-gemm.md says of designs, types and its manifest is what the generator has."""

from __future__ import annotations

import re
from pathlib import Path

from cutlass_aot.generators.sm90_gemm.generator import INPUTS, LAYOUTS, SCALES, Sm90Gemm
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.schema.kernels.design import full_name
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "reference" / "sm90-gemm.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return list(map(str, re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)))


def test_its_designs_are_those_that_can_be_filtered_on() -> None:
    table = TEXT.partition("| design | |")[2].partition("\n\n")[0]
    names = [full_name(name) for name in re.findall(r"^\| `(\w+)`", table, re.MULTILINE)]
    assert {*names, "family"} == Sm90Gemm.design.keys()


def test_its_types_are_those_that_there_are() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| `a`"))
    assert row.split("|")[2].strip() == ", ".join(INPUTS)
    assert all(f"`{layouts}`" in TEXT for layouts in LAYOUTS)


def test_its_tables_are_manifests() -> None:
    head = '[bundle]\nname = "page"\ntargets = ["sm_90a"]\ndevice = "h200"\n'
    plain, exact, scaled = (
        parse_manifest((head + block).encode(), Path("docs/reference/sm90-gemm.md")).tables[0]
        for block in blocks("toml")
    )
    assert (plain.generator, plain.scales) == ("sm90_gemm", ((None, None),))
    assert (exact.generator, exact.accumulations) == ("sm90_gemm", ("exact",))
    assert exact.epilogue is not None
    assert (scaled.generator, scaled.scales) == ("sm90_gemm", (SCALES,))
    for name, language, call in (
        ("sm90_fused", "python gpu", 'epilogue="D = gelu(accum + bias)"'),
        ("sm90_scaled", "python gpu exact", f'epilogue="{exact.epilogue.formula}"'),
        ("sm90_scaled", "python gpu scaled", "a_scale=x_factors, b_scale=weight_factors"),
    ):
        path = REPOSITORY / "manifests" / f"{name}.toml"
        (block,) = blocks(language)
        assert f'"build/bundles/{parse_manifest(path.read_bytes(), path).name}"' in block
        assert call in block
