"""Kernels of packages that serve models as a program: those of vLLM, sglang and others, on one GPU.

It is recorded without a GPU and answered on one as any program is::

    python -m tools.check.other_packages --vllm vllm-0.33.0 --sglang sglang-0.5.10 --check

Each option names a folder that has the package's sources, as an unpacked wheel or source distribution. Only
the modules of its CuTe DSL kernels are imported: a package's own ``__init__`` would import extensions and
many other packages. With ``--check``, on a GPU, results are compared with torch's. It prints how many were
right, and names those that were not.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

F = torch.nn.functional
_LIMIT = 0.02
"""Of the relative error of a result: bf16's of a sum is below 0.005."""

Case = Callable[[], None]


class Cases:
    """Runs cases, and compares what they compute."""

    def __init__(self, check: bool) -> None:
        self.check = check
        self.right = 0
        self.wrong: list[str] = []

    def run(self, case: Case) -> None:
        """Run a case; one that raises is wrong, and the others go on."""
        try:
            case()
        except Exception:
            self.wrong.append(case.__name__)
            traceback.print_exc()

    def close(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare a result with the one expected, by the norm of the difference."""
        if not self.check:
            return
        error = float((found.float() - expected.float()).norm() / expected.float().norm())
        if error < _LIMIT:
            self.right += 1
        else:
            self.wrong.append(f"{name} ({error:.3f})")


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor on the GPU, normally distributed."""
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def folder_of(name: str, folder: Path) -> ModuleType:
    """A package that is a folder alone, in place of one whose ``__init__`` imports too much."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    module.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def stand_in(name: str, **values: Any) -> None:
    """A module with these names, in place of one that imports too much."""
    vars(folder_of(name, Path())).update(values)


# ---- vLLM --------------------------------------------------------------------------------------------------


class _Logger(logging.Logger):
    """A logger with vLLM's methods."""

    def info_once(self, *arguments: Any) -> None:
        """Say nothing."""

    warning_once = debug_once = info_once


def _platform() -> Any:
    """What vLLM's kernels ask of ``current_platform``."""

    def capability(*device: Any) -> tuple[int, int]:
        major, minor = torch.cuda.get_device_capability()
        return major, minor

    def is_family(number: int, *device: Any) -> bool:
        return capability()[0] == number // 10

    return SimpleNamespace(
        is_cuda=lambda: True, is_rocm=lambda: False, get_device_capability=capability,
        has_device_capability=lambda number, *device: capability() >= divmod(number, 10),
        is_device_capability=lambda number, *device: capability() == divmod(number, 10),
        is_device_capability_family=is_family, is_arch_support_pdl=lambda: capability() >= (9, 0),
    )  # fmt: skip


def vllm(cases: Cases, sources: Path) -> list[Case]:
    """Cases of vLLM 0.33.0."""
    root = sources / "vllm"
    for folder in ("", "model_executor", "model_executor/kernels", "model_executor/kernels/linear",
                   "model_executor/warmup", "models", "utils"):  # fmt: skip
        folder_of(".".join(["vllm", *Path(folder).parts]), root / folder)
    for model in ("muse_spark", "step5"):
        for folder in ("", "nvidia", "nvidia/ops"):
            folder_of(
                ".".join(["vllm", "models", model, *Path(folder).parts]), root / "models" / model / folder
            )
    stand_in("vllm.platforms", current_platform=_platform())
    stand_in("vllm.logger", init_logger=_Logger)
    stand_in("vllm.utils.torch_utils", current_stream=torch.cuda.current_stream)

    def skinny_gemm() -> None:
        kernels = importlib.import_module("vllm.model_executor.kernels.linear.cute_dsl.skinny_gemm")
        gemm, config_of = kernels.ShapeDynamicSkinnyGemm(), kernels.SkinnyGemmConfig
        for dtype in (torch.bfloat16, torch.float16):
            for config in (config_of(1, 128, 1), config_of(4, 128, 4, k_unroll=2)):
                for n, k in ((512, 2048), (1536, 4096)):
                    a, b = drawn(config.num_rows, k, dtype=dtype), drawn(n, k, dtype=dtype)
                    residual, product = drawn(config.num_rows, n, dtype=dtype), a.float() @ b.float().T
                    cases.close("skinny_gemm", gemm(a, b, config), product)
                    cases.close("skinny_gemm, residual", gemm(a, b, config, residual), product + residual)

    def small_gemm() -> None:
        kernels = importlib.import_module("vllm.model_executor.kernels.linear.cute_dsl.ll_bf16")
        gemm = kernels.LLBf16Gemm()
        for m, n, k in ((1, 256, 7168), (4, 256, 7168), (16, 384, 4096)):
            a, b = drawn(m, k), drawn(n, k)
            for dtype in (torch.float32, torch.bfloat16):
                cases.close("ll_bf16", gemm(a, b, dtype), a.float() @ b.float().T)

    def small_gemm_f32() -> None:
        kernels = importlib.import_module("vllm.model_executor.kernels.linear.cute_dsl.ll_fp32w")
        gemm = kernels.LLFp32WGemm()
        for m in (1, 4):
            a, b = drawn(m, 4096), drawn(256, 4096, dtype=torch.float32)
            cases.close("ll_fp32w", gemm(a, b), a.float() @ b.T)

    def rms_norm() -> None:
        norm = importlib.import_module("vllm.models.step5.nvidia.ops.rms_norm").rms_norm
        for n in (4096, 7168):
            x, weight, residual = drawn(37, n), drawn(n), drawn(37, n, dtype=torch.float32)
            total = x.float() + residual
            cases.close("rms_norm", norm(x, weight, 1e-6), F.rms_norm(x.float(), (n,), weight.float(), 1e-6))
            found = norm(x, weight, 1e-6, residual=residual)
            cases.close("rms_norm, residual", found, F.rms_norm(total, (n,), weight.float(), 1e-6))
            cases.close("the residual", residual, total)

    def qk_norm() -> None:
        norm = importlib.import_module("vllm.models.muse_spark.nvidia.ops.cute_dsl.qk_norm").qk_norm
        for scale in (1.0, 0.5):
            x = drawn(33, 8 * 128)
            expected = F.rms_norm(x.float().view(33, 8, 128), (128,), None, 1e-5).view(33, -1) * scale
            cases.close("qk_norm", norm(x, 128, 1e-5, scale), expected)

    return [skinny_gemm, small_gemm, small_gemm_f32, rms_norm, qk_norm]


# ---- sglang ------------------------------------------------------------------------------------------------


def sglang(cases: Cases, sources: Path) -> list[Case]:
    """Cases of sglang 0.5.10."""
    folder_of("sglang", sources / "sglang")

    def fused_norms() -> None:
        module = "sglang.jit_kernel.diffusion.cutedsl.scale_residual_norm_scale_shift"
        kernels = importlib.import_module(module)
        n = 3072
        for kind in ("layer", "rms"):
            x, residual, (scale, shift, gate) = drawn(2, 333, n), drawn(2, 333, n), drawn(3, 2, 1, n)

            def expected(x: torch.Tensor, kind: str = kind, scale: Any = scale, shift: Any = shift) -> Any:
                normed = F.layer_norm(x, (n,)) if kind == "layer" else F.rms_norm(x, (n,), None, 1e-5)
                return normed * (1 + scale.float()) + shift.float()

            found = kernels.fused_norm_scale_shift(x, None, None, scale, shift, kind)
            cases.close(f"{kind} norm", found, expected(x.float()))
            found, sums = kernels.fused_scale_residual_norm_scale_shift(
                residual, x, gate, None, None, scale, shift, kind
            )
            total = residual.float() + gate.float() * x.float()
            cases.close(f"{kind} norm, the residual", sums, total)
            cases.close(f"{kind} norm, residual", found, expected(total))

    def gated_delta_rule() -> None:
        module = importlib.import_module("sglang.jit_kernel.cutedsl_gdn")
        update = module.cutedsl_fused_sigmoid_gating_delta_rule_update
        heads, value_heads, d = 8, 16, 128
        for tokens in (4, 64):
            for lead in ((tokens, 1), (1, tokens)):
                q, k, v = drawn(*lead, heads, d), drawn(*lead, heads, d), drawn(*lead, value_heads, d)
                a, b = drawn(*lead, value_heads), drawn(*lead, value_heads)
                log_decay, bias = drawn(value_heads, dtype=torch.float32), drawn(value_heads)
                states = drawn(128, value_heads, d, d, dtype=torch.float32)
                before = states[:tokens].clone()
                rows = torch.arange(tokens + 1, device="cuda", dtype=torch.int32)
                found = update(log_decay, bias, q, k, v, a, b, states, rows[:-1].clone(), rows)
                out, after = _delta_rule(before, q, k, v, a, b, log_decay, bias)
                cases.close("gated delta rule", found.reshape(out.shape), out)
                cases.close("gated delta rule, its state", states[:tokens], after)

    return [fused_norms, gated_delta_rule]


def _delta_rule(
    states: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    log_decay: torch.Tensor,
    bias: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token for each state by the gated delta rule (arXiv 2412.06464): results and new states."""
    count, heads, d = states.shape[:3]
    query, key = (
        F.normalize(x.reshape(count, -1, d).float(), dim=-1).repeat_interleave(heads // x.shape[-2], 1)
        for x in (q, k)
    )
    decay = -log_decay.exp() * F.softplus(a.reshape(count, heads).float() + bias.float())
    states = states * decay.exp()[..., None, None]
    error = v.reshape(count, heads, d).float() - (states * key[..., None]).sum(-2)
    error *= b.reshape(count, heads).float().sigmoid()[..., None]
    states = states + key[..., None] * error[..., None, :]
    return (states * (query * d**-0.5)[..., None]).sum(-2), states


# ---- others ------------------------------------------------------------------------------------------------


def transformer_engine(cases: Cases, sources: Path) -> list[Case]:
    """Cases of TransformerEngine 2.20.2, which its C++ code asks for through TVM-FFI; compiled, not run."""
    root = sources / "transformer_engine"
    folder_of("transformer_engine", root)
    folder_of("transformer_engine.common", root / "common")

    def quantize_mxfp8() -> None:
        import tvm_ffi

        importlib.import_module("transformer_engine.common.CuTeDSL").register_cutedsl_backends()
        get = tvm_ffi.get_global_func("get_mxfp8_quantization_function")
        nothing, gelu = (False, False, False, False, False), (True, False, False, True, False)
        of_gelu = (False, True, True, False, False)
        for dtype in ("BFloat16", "Float16"):
            given = [(rows, columns, swizzled, *nothing, "none")
                     for rows, columns in ((True, False), (False, True), (True, True))
                     for swizzled in (False, True)]  # fmt: skip
            given += [(True, True, False, *gelu, "gelu"), (True, True, False, *of_gelu, "dgelu")]
            for number, options in enumerate(given):
                if torch.cuda.get_device_capability() >= (10, 0):
                    assert get(f"{dtype}_{number}", dtype, "Float8E4M3", *options), options

    return [quantize_mxfp8]


def gram_newton_schulz(cases: Cases, sources: Path) -> list[Case]:
    """The case of gram-newton-schulz 0.1.6: it compiles its loop with torch.compile."""
    sys.path.insert(0, str(sources))

    def orthogonalized() -> None:
        module = importlib.import_module("gram_newton_schulz")
        x = drawn(2, 512, 1024)
        found = module.GramNewtonSchulz()(x).float()
        if cases.check:
            # Newton-Schulz steps bring singular values near 1.
            values = torch.linalg.svdvals(found)
            cases.close("gram_newton_schulz", values.clamp(0.7, 1.3), values)

    return [orthogonalized]


PACKAGES = {
    "vllm": vllm, "sglang": sglang, "transformer_engine": transformer_engine,
    "gram_newton_schulz": gram_newton_schulz,
}  # fmt: skip


def main() -> int:
    """Run the cases of the packages that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in PACKAGES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="compare results with torch's; needs a GPU")
    options = parser.parse_args()
    if not any(getattr(options, name) for name in PACKAGES):
        parser.error(f"name the folder of at least one of {', '.join(PACKAGES)}")
    torch.manual_seed(0)
    cases = Cases(options.check)
    for name, cases_of in PACKAGES.items():
        folder = getattr(options, name)
        if folder is not None:
            if not folder.is_dir():
                parser.error(f"{folder} is not a folder")
            for case in cases_of(cases, folder.resolve()):
                cases.run(case)
    print(
        ": ".join([f"{cases.right} right, {len(cases.wrong)} wrong", *filter(None, [", ".join(cases.wrong)])])
    )
    # A check that compares nothing has failed.
    return 1 if cases.wrong or (cases.check and not cases.right) else 0


if __name__ == "__main__":
    sys.exit(main())
