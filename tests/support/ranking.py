"""A generator whose heuristic ranks by tile: the larger the tile, the better, on every problem but one."""

from __future__ import annotations

from collections.abc import Mapping

from cutlass_aot.generators.protocol import Heuristic, Ranked
from cutlass_aot.generators.registry import register
from tests.support.kernels import gemm

TILES = ((64, 64, 64), (128, 128, 64), (256, 128, 64))
GPUS = {"GOOD": "NVIDIA H200", "LIAR": "a GPU for which it names kernels of its own", "RAISES": "none"}


@register
class Ranking:
    name = "ranking"
    version = "1"
    operations = ("gemm",)
    modules = ("tests.support.ranking",)
    design: Mapping[str, str] = {
        "family": "Known or Unknown",
        "tile_shape": "tile",
        "tile_scheduler": "clc or static",
    }
    heuristics: Mapping[str, Heuristic] = {"by_tile": Heuristic("By tile", "msgpack", "0", GPUS)}

    def targets(self, operation):
        return ("sm_90a", "sm_100a")

    def enumerate(self, problem, target, device):
        designs = [("Known", tile, scheduler) for tile in TILES for scheduler in ("static", "clc")]
        for family, tile, scheduler in [*designs, ("Unknown", (64, 8, 64), "clc")]:
            yield gemm(
                dtypes=problem.dtypes,
                layouts=problem.layouts,
                design={"family": family, "tile_shape": tile, "tile_scheduler": scheduler},
                target=target,
                generator=self.name,
            )

    def compile(self, kernel):
        raise NotImplementedError

    def rank(self, problem, target, kernels, shapes, *, heuristic, gpu):
        if gpu == "RAISES":
            raise RuntimeError("no such model")
        if gpu == "LIAR":
            return Ranked(frozenset(), tuple((("0" * 64,),) for _ in shapes))
        designs = {kernel.digest: dict(kernel.design) for kernel in kernels}
        known = {digest: design for digest, design in designs.items() if design["family"] == "Known"}
        order = sorted({design["tile_shape"] for design in known.values()}, reverse=True)
        tied = tuple(
            tuple(sorted(digest for digest, design in known.items() if design["tile_shape"] == tile))
            for tile in order
        )
        problems = tuple(() if shape.m == 13 else tied[1:] if shape.m == 1 else tied for shape in shapes)
        return Ranked(frozenset(known), problems, "13 is unlucky")
