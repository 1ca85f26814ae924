"""FlashInfer's CuTe DSL kernels as a server calls them, on small shapes.

It knows nothing of cutlass-aot. On a machine with a GPU, ``--check`` compares the results that have a short
reference with torch, also over numbers of rows beyond those that are run first; the others are run.

Kernels that FlashInfer builds with nvcc or downloads are not here, nor those whose host code reads values of
a tensor on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import flashinfer
import torch
from cases import Case, Result, main
from flashinfer.attention.cute_dsl import cute_dsl_fmha_ragged_prefill
from flashinfer.attention.cute_dsl.fmha_blockscaled import cute_dsl_fmha_blockscaled_prefill
from flashinfer.attention.prims_ts.block_sparse import BlockSparsePagedTSWrapper, BlockSparseTSWrapper
from flashinfer.attention.prims_ts.context import BatchPrefillPagedTSWrapper, BatchPrefillTSWrapper
from flashinfer.attention.prims_ts.decode import BatchDecodePagedTSWrapper
from flashinfer.attention.prims_ts.mla_decode import BatchMLADecodePagedTSWrapper
from flashinfer.attn_scores import fp4_paged_mqa_logits, fp8_paged_mqa_logits
from flashinfer.cute_dsl import add_rmsnorm_fp4quant, rmsnorm_fp4quant
from flashinfer.cute_dsl.attention import cute_dsl_hca_decode, cute_dsl_mla_decode
from flashinfer.cute_dsl.attention.wrappers.batch_decode import (
    BatchDecodeCuteDSLWrapper,
    BatchDecodePagedCuteDSLWrapper,
)
from flashinfer.gdn_decode import (
    gated_delta_rule_decode,
    gated_delta_rule_decode_pretranspose,
    gated_delta_rule_mtp,
    gated_delta_rule_replayssm_commit,
)
from flashinfer.gdn_kernels import (
    gated_delta_rule_mtp_ucache,
    gated_delta_rule_mtp_ucache_flush,
    gated_delta_rule_mtp_wy_output_only,
)
from flashinfer.gdn_kernels.qk_l2norm import normalize_qk
from flashinfer.kda_decode import fused_kda_decode, recurrent_kda
from flashinfer.mamba import SSDCombined
from flashinfer.mla import trtllm_batch_decode_with_kv_cache_mla
from flashinfer.norm import fused_add_rmsnorm_quant, rmsnorm_quant
from torch.nn import functional

WIDTH, DEPTH, EPSILON = 4096, 2048, 1e-6
HEADS, KV_HEADS, HEAD_DIM, PAGE = 16, 4, 128, 64
ROWS = (128,)
OTHER_ROWS = (256, 384)
E4M3_MAX, E2M1_MAX = 448.0, 6.0


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random operands."""
    return torch.randn(*shape, device="cuda", dtype=dtype)


def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Operands that a kernel fills, or whose values are not looked at."""
    return torch.zeros(*shape, device="cuda", dtype=dtype)


def norm(x: torch.Tensor, weight: torch.Tensor, offset: float = 0.0) -> torch.Tensor:
    """RMSNorm in float32."""
    return functional.rms_norm(x.float(), (x.shape[-1],), weight.float() + offset, EPSILON)


def rms_norm(rows: int) -> list[Result]:
    """RMSNorm of rows, and of the heads of queries and keys."""
    x, weight = normal(rows, WIDTH), normal(WIDTH)
    heads, weight_of_heads = normal(rows, HEADS, HEAD_DIM), normal(HEAD_DIM)
    return [
        (flashinfer.rmsnorm(x, weight), lambda: norm(x, weight)),
        (flashinfer.rmsnorm(heads, weight_of_heads), lambda: norm(heads, weight_of_heads)),
    ]


def rms_norm_to_fp8(rows: int) -> list[Result]:
    """RMSNorm whose result is quantized with one scale."""
    x, weight, scale = normal(rows, WIDTH), normal(WIDTH), torch.ones(1, device="cuda")
    out = zeros(rows, WIDTH, dtype=torch.float8_e4m3fn)
    rmsnorm_quant(out, x, weight, scale)
    added = zeros(rows, WIDTH, dtype=torch.float8_e4m3fn)
    residual = normal(rows, WIDTH)
    total = residual + x
    fused_add_rmsnorm_quant(added, x, residual, weight, scale)
    # e4m3 has three bits of mantissa.
    return [
        (out.float() / 4, lambda: norm(x, weight).to(torch.float8_e4m3fn).float() / 4),
        (residual, lambda: total),
    ]


def added_rms_norm(rows: int) -> list[Result]:
    """RMSNorm of the sum with the residual stream, which is updated; and Gemma's, with weights about one."""
    results: list[Result] = []
    for function, offset in ((flashinfer.fused_add_rmsnorm, 0.0), (flashinfer.gemma_fused_add_rmsnorm, 1.0)):
        x, residual, weight = normal(rows, WIDTH), normal(rows, WIDTH), normal(WIDTH)
        total = x.float() + residual.float()
        function(x, residual, weight)
        results.append((x, lambda t=total, w=weight, o=offset: norm(t, w, o)))  # type: ignore[misc]
        results.append((residual, lambda t=total: t))  # type: ignore[misc]
    x, weight = normal(rows, WIDTH), normal(WIDTH)
    return [*results, (flashinfer.gemma_rmsnorm(x, weight), lambda: norm(x, weight, 1.0))]


def layer_norm(rows: int) -> list[Result]:
    """LayerNorm."""
    x = normal(rows, WIDTH)
    weight, bias = normal(WIDTH, dtype=torch.float32), normal(WIDTH, dtype=torch.float32)
    out = flashinfer.layernorm(x, weight, bias)
    return [(out, lambda: functional.layer_norm(x.float(), (WIDTH,), weight, bias, EPSILON))]


def rms_norm_to_fp4(rows: int) -> list[Result]:
    """RMSNorm whose result is quantized to NVFP4."""
    x, weight, scale = normal(rows, WIDTH), normal(WIDTH), torch.ones(1, device="cuda")
    rmsnorm_fp4quant(x, weight, global_scale=scale)
    add_rmsnorm_fp4quant(x, normal(rows, WIDTH), weight, global_scale=scale)
    return []


def normalized_qk(rows: int) -> list[Result]:
    """Queries and keys of length one."""
    q, k = normal(rows, HEADS, HEAD_DIM), normal(rows, HEADS, HEAD_DIM)
    out = normalize_qk(q, k)
    return [
        (out[0], lambda: functional.normalize(q.float(), dim=-1)),
        (out[1], lambda: functional.normalize(k.float(), dim=-1)),
    ]


def quantize(rows: int) -> list[Result]:
    """Quantization to MXFP8."""
    flashinfer.mxfp8_quantize(normal(rows, WIDTH), True, backend="cute-dsl")
    return []


def quantize_to_fp4(rows: int) -> list[Result]:
    """Quantization to MXFP4 and NVFP4."""
    x = normal(rows, WIDTH)
    flashinfer.mxfp4_quantize(x, backend="cute-dsl")
    nvfp4(x)
    return []


def gated_delta_net(rows: int) -> list[Result]:
    """Gated delta net: prefill, decoding with either layout of the state, and several tokens at once."""
    batch, value_heads = 4, 2 * HEADS
    ends = torch.tensor([0, rows, 2 * rows], device="cuda")
    q, k, v = (functional.normalize(normal(2 * rows, HEADS, HEAD_DIM), dim=-1) for _ in range(3))
    gate, beta = (torch.rand(2 * rows, HEADS, device="cuda") for _ in range(2))
    flashinfer.chunk_gated_delta_rule(q, k, v, g=gate, beta=beta, cu_seqlens=ends, output_final_state=True)

    def state(dtype: torch.dtype) -> torch.Tensor:
        return zeros(batch, value_heads, HEAD_DIM, HEAD_DIM, dtype=dtype)

    for dtype in (torch.float32, torch.bfloat16):
        gated_delta_rule_decode_pretranspose(**delta_operands(batch, 1), state=state(dtype))
    if torch.cuda.get_device_capability()[0] == 9:  # On Blackwell it is a kernel that nvcc builds.
        gated_delta_rule_decode(**delta_operands(batch, 1), state=state(torch.float32))
    indices = torch.arange(batch, device="cuda", dtype=torch.int32)
    gated_delta_rule_mtp(
        **delta_operands(batch, 2), initial_state=state(torch.float32), initial_state_indices=indices,
        disable_state_update=False,
    )  # fmt: skip
    return []


def kimi_delta_attention(rows: int) -> list[Result]:
    """Decoding with Kimi's delta attention, alone and with what stands before and after it."""
    batch = 4
    q, k, v, gate = (normal(batch, 1, HEADS, HEAD_DIM) for _ in range(4))
    recurrent_kda(
        q, k, v, gate, normal(batch, 1, HEADS), A_log=normal(HEADS, dtype=torch.float32),
        dt_bias=normal(HEADS * HEAD_DIM, dtype=torch.float32),
        initial_state=zeros(batch, HEADS, HEAD_DIM, HEAD_DIM, dtype=torch.bfloat16), use_gate_in_kernel=True,
        output_final_state=True, lower_bound=-5.0,
    )  # fmt: skip
    heads, states = 8, 16
    width = heads * HEAD_DIM
    fused_kda_decode(
        normal(batch, 3 * width), normal(3, 4, width, dtype=torch.float32),
        zeros(states, 3, 3 * width, dtype=torch.bfloat16).transpose(1, 2),
        normal(1, batch, heads, HEAD_DIM), normal(1, batch, heads),
        normal(heads, dtype=torch.float32), normal(width, dtype=torch.float32),
        torch.arange(1, batch + 1, device="cuda", dtype=torch.int32),
        zeros(states, heads, HEAD_DIM, HEAD_DIM, dtype=torch.float32), normal(batch, heads, HEAD_DIM),
        normal(HEAD_DIM, dtype=torch.float32),
    )  # fmt: skip
    return []


def decode(rows: int) -> list[Result]:
    """Attention of one query each over as many keys and values."""
    batch, length = 4, 1024
    wrapper = BatchDecodeCuteDSLWrapper(zeros(128 << 20, dtype=torch.uint8))
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    wrapper.plan(batch, length, HEADS, KV_HEADS, HEAD_DIM, **types)
    q = normal(batch, 1, HEADS, HEAD_DIM)
    k, v = (normal(batch, length, KV_HEADS, HEAD_DIM) for _ in range(2))
    out = wrapper.run(q, k, v)

    def expected() -> torch.Tensor:
        operands = (operand.transpose(1, 2).float() for operand in (q, k, v))
        return functional.scaled_dot_product_attention(*operands, enable_gqa=True).transpose(1, 2)

    return [(out, expected)]


def paged_decode(rows: int) -> list[Result]:
    """Attention of one query each over keys and values in pages."""
    batch, pages = 2, 8
    length = pages * PAGE
    wrapper = BatchDecodePagedCuteDSLWrapper(zeros(128 << 20, dtype=torch.uint8))
    first_pages = torch.arange(0, (batch + 1) * pages, pages, dtype=torch.int32)
    order = torch.arange(batch * pages, dtype=torch.int32)
    lengths = torch.full((batch,), length, dtype=torch.int32)
    wrapper.plan(
        first_pages, order, lengths, HEADS, KV_HEADS, HEAD_DIM, PAGE, q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16, max_kv_len=length,
    )  # fmt: skip
    q = normal(batch, HEADS, HEAD_DIM)
    k, v = (normal(batch * pages, PAGE, KV_HEADS, HEAD_DIM) for _ in range(2))
    out = wrapper.run(q, k, v)

    def expected() -> torch.Tensor:
        keys, values = (cache.view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2) for cache in (k, v))
        attention = functional.scaled_dot_product_attention(
            q[:, :, None].float(), keys.float(), values.float(), enable_gqa=True
        )
        return attention[:, :, 0]

    return [(out.view(batch, HEADS, HEAD_DIM), expected)]


def latent_decode(rows: int) -> list[Result]:
    """Decoding with multi-head latent attention."""
    batch, pages, heads, latent, rope = 4, 8, 128, 512, 64
    length, scale = pages * PAGE, 0.1
    query = normal(batch, 1, heads, latent + rope)
    cache = normal(batch * pages, 1, PAGE, latent + rope)
    table = torch.arange(batch * pages, device="cuda", dtype=torch.int32).view(batch, pages)
    out = trtllm_batch_decode_with_kv_cache_mla(
        query=query, kv_cache=cache, workspace_buffer=zeros(128 << 20, dtype=torch.uint8),
        qk_nope_head_dim=128, kv_lora_rank=latent, qk_rope_head_dim=rope, block_tables=table,
        seq_lens=torch.full((batch,), length, device="cuda", dtype=torch.int32), max_seq_len=length,
        bmm1_scale=scale, bmm2_scale=1.0, backend="cute-dsl",
    )  # fmt: skip

    def expected() -> torch.Tensor:
        keys = cache.view(batch, 1, length, latent + rope).float()
        attention = functional.scaled_dot_product_attention(
            query.transpose(1, 2).float(), keys, keys[..., :latent], scale=scale, enable_gqa=True
        )
        return attention.transpose(1, 2)

    return [(out.view(batch, 1, heads, latent), expected)]


def state_space_dual(rows: int) -> list[Result]:
    """The prefill of Mamba 2."""
    groups, state = 8, 128
    scan = SSDCombined(128, HEADS, 64, state, groups)
    b, c = (normal(1, 256, groups, state) for _ in range(2))
    scan.run(
        normal(1, 256, HEADS, 64), normal(1, 256, HEADS), -torch.rand(HEADS, device="cuda"), b, c,
        D=normal(HEADS),
    )  # fmt: skip
    return []


def top_k(rows: int) -> list[Result]:
    """The largest scores of sequences of different lengths, as sparse attention takes them."""
    scores = normal(16, 8192, dtype=torch.float32)
    lengths = torch.full((16,), 8192, device="cuda", dtype=torch.int32)
    guess = torch.arange(512, device="cuda", dtype=torch.int32).expand(16, 512).contiguous()
    for backend in ("radix", "radix_filter"):
        flashinfer.top_k_varlen(scores, lengths, 512, backend=backend)
    for backend in ("gvr", "gvr_2"):
        flashinfer.top_k_varlen(scores, lengths, 512, pre_idx=guess, backend=backend)
    return []


def indexer_scores(rows: int) -> list[Result]:
    """Scores of a sparse attention's indexer over keys in pages, in FP8 and in NVFP4."""
    batch, pages = 4, 16
    lengths = torch.full((batch,), pages * PAGE, device="cuda", dtype=torch.int32)
    table = torch.arange(batch * pages, device="cuda", dtype=torch.int32).view(batch, pages)
    weights = normal(batch, 64, dtype=torch.float32)
    q = zeros(batch, 1, 64, HEAD_DIM, dtype=torch.float8_e4m3fn)
    keys = zeros(batch * pages, PAGE, 1, HEAD_DIM + 4, dtype=torch.uint8)
    fp8_paged_mqa_logits(q, keys, weights, table, lengths, pages * PAGE)
    q4, scales = zeros(batch, 1, 64, HEAD_DIM // 2, dtype=torch.uint8), zeros(batch, 1, 64, dtype=torch.int32)
    keys4 = zeros(batch * pages, PAGE, 1, HEAD_DIM // 2 + 4, dtype=torch.uint8)
    fp4_paged_mqa_logits(q4, scales, keys4, weights, table, lengths, pages * PAGE)
    return []


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in float32 of (batch, length, heads, width)."""
    operands = (operand.transpose(1, 2).float() for operand in (q, k, v))
    out = functional.scaled_dot_product_attention(*operands, enable_gqa=True)
    return out.transpose(1, 2)


def counted(*shape: int) -> torch.Tensor:
    """Indices from zero on."""
    return torch.arange(torch.Size(shape).numel(), device="cuda", dtype=torch.int32).view(shape)


def filled(size: int, value: int) -> torch.Tensor:
    """As many equal lengths."""
    return torch.full((size,), value, device="cuda", dtype=torch.int32)


def delta_operands(batch: int, tokens: int) -> dict[str, torch.Tensor]:
    """What a decoding step of the gated delta net takes besides its state."""
    value_heads = 2 * HEADS
    return {
        "q": normal(batch, tokens, HEADS, HEAD_DIM),
        "k": normal(batch, tokens, HEADS, HEAD_DIM),
        "v": normal(batch, tokens, value_heads, HEAD_DIM),
        "A_log": normal(value_heads, dtype=torch.float32),
        "a": normal(batch, tokens, value_heads),
        "dt_bias": normal(value_heads, dtype=torch.float32),
        "b": normal(batch, tokens, value_heads),
    }


def gated_delta_net_chunks(rows: int) -> list[Result]:
    """Gated delta net: a prefill whose chunks are computed in parallel."""
    length = 4096
    q, k, v = (functional.normalize(normal(length, HEADS, HEAD_DIM), dim=-1) for _ in range(3))
    gate, beta = (torch.rand(length, HEADS, device="cuda") for _ in range(2))
    ends = torch.tensor([0, length], device="cuda")
    flashinfer.chunk_gated_delta_rule(
        q, k, v, g=gate, beta=beta, cu_seqlens=ends, output_final_state=True, use_cp=True
    )
    return []


def gated_delta_net_verify(rows: int) -> list[Result]:
    """Gated delta net: drafted tokens over states in bf16, updated, kept, and with rings of past updates."""
    batch, tokens, slots, value_heads = 4, 4, 8, 2 * HEADS
    where = {"initial_state_indices": counted(batch)}
    states = zeros(slots, value_heads, HEAD_DIM, HEAD_DIM, dtype=torch.bfloat16)
    for kept in (False, True):
        gated_delta_rule_decode_pretranspose(
            **delta_operands(batch, tokens),
            state=None,
            initial_state=states,
            disable_state_update=kept,
            **where,
        )
    where["initial_state_source"] = states
    gated_delta_rule_mtp_wy_output_only(**delta_operands(batch, tokens), disable_state_update=True, **where)

    def ring(size: int) -> dict[str, torch.Tensor]:
        return {
            "k_cache": zeros(slots, HEADS, size, HEAD_DIM, dtype=torch.bfloat16),
            "u_cache": zeros(slots, value_heads, size, HEAD_DIM, dtype=torch.bfloat16),
            "g_cache": zeros(slots, value_heads, size, dtype=torch.float32),
            "hist_len": filled(batch, 0),
        }

    gated_delta_rule_mtp_ucache(
        **delta_operands(batch, tokens), disable_state_update=True, **where, **ring(16)
    )
    gated_delta_rule_mtp_ucache_flush(
        **delta_operands(batch, tokens), **where, **ring(32), cache_base=filled(batch, 0),
        restart_hist_on_flush=False,
    )  # fmt: skip
    return []


def gated_delta_net_replay(rows: int) -> list[Result]:
    """Gated delta net: drafted tokens whose inputs are kept, and the commit of those that are accepted."""
    batch, slots, value_heads, layers = 4, 8, 2 * HEADS, 2
    for tokens in (3, 4):
        gated_delta_rule_mtp(
            **delta_operands(batch, tokens),
            initial_state=zeros(slots, value_heads, HEAD_DIM, HEAD_DIM, dtype=torch.float32),
            initial_state_indices=counted(batch), disable_state_update=True, cache_replayssm=True,
            replayssm_rawv=zeros(slots, value_heads, tokens, HEAD_DIM, dtype=torch.bfloat16),
            replayssm_rawk=zeros(slots, HEADS, tokens, HEAD_DIM, dtype=torch.bfloat16),
            replayssm_g=zeros(slots, value_heads, tokens, dtype=torch.float32),
            replayssm_beta=zeros(slots, value_heads, tokens, dtype=torch.float32),
        )  # fmt: skip
    for backend, tokens in (("simt", 4), ("tcgen05", 8)):
        gated_delta_rule_replayssm_commit(
            zeros(layers, slots, value_heads, HEAD_DIM, HEAD_DIM, dtype=torch.float32),
            zeros(layers, slots, value_heads, tokens, HEAD_DIM, dtype=torch.bfloat16),
            zeros(layers, slots, HEADS, tokens, HEAD_DIM, dtype=torch.bfloat16),
            zeros(layers, slots, value_heads, tokens, dtype=torch.float32),
            zeros(layers, slots, value_heads, tokens, dtype=torch.float32),
            counted(batch), filled(batch, tokens), backend=backend,
        )  # fmt: skip
    return []


def kimi_operands(batch: int, tokens: int, heads: int) -> dict[str, torch.Tensor | float | bool]:
    """What Kimi's delta attention takes besides its state."""
    return {
        **{name: normal(batch, tokens, heads, HEAD_DIM) for name in ("q", "k", "v", "g")},
        "beta": normal(batch, tokens, heads),
        "A_log": normal(heads, dtype=torch.float32),
        "dt_bias": normal(heads * HEAD_DIM, dtype=torch.float32),
        "use_gate_in_kernel": True,
        "lower_bound": -5.0,
    }


def kimi_verify(rows: int) -> list[Result]:
    """Kimi's delta attention: drafted tokens over a state that is kept, and over several that are updated."""
    batch, tokens, slots = 4, 4, 8
    states = zeros(slots, HEADS, HEAD_DIM, HEAD_DIM, dtype=torch.bfloat16)
    kept = {"initial_state_source": states, "initial_state_indices": counted(batch)}
    flashinfer.recurrent_kda(**kimi_operands(batch, tokens, HEADS), **kept, disable_state_update=True)
    flashinfer.recurrent_kda(
        **kimi_operands(batch, tokens, HEADS), **kept, disable_state_update=True,
        correction_cache=zeros(slots, HEADS, tokens, HEAD_DIM, dtype=torch.float32),
        kg_cache=zeros(slots, HEADS, tokens, 2 * HEAD_DIM, dtype=torch.bfloat16),
    )  # fmt: skip
    flashinfer.recurrent_kda(
        **kimi_operands(1, 2 * tokens, HEADS), cu_seqlens=tokens * counted(3),
        ssm_state_indices=counted(2, tokens), num_spec_tokens=tokens - 1, num_accepted_tokens=filled(2, 1),
        initial_state=states,
    )  # fmt: skip
    return []


def kimi_prefill(rows: int) -> list[Result]:
    """Kimi's delta attention: prefill, by three kernels, and several tokens at once."""
    whole = {"output_final_state": True, "beta_is_logit": True}
    for backend in ("auto", "small-bh", "cute-dsl-persistent"):
        flashinfer.recurrent_kda(**kimi_operands(1, 512, 8), **whole, backend=backend)
    flashinfer.recurrent_kda(**kimi_operands(4, 512, 64), **whole, backend="cute-dsl")
    heads, tokens, batch, states = 12, 4, 2, 16
    width, all_rows = heads * HEAD_DIM, batch * tokens
    flashinfer.packed_fused_kda_decode(
        normal(all_rows, 3 * width), normal(3, 4, width, dtype=torch.float32),
        zeros(states, tokens + 2, 3 * width, dtype=torch.bfloat16).transpose(1, 2),
        normal(1, all_rows, heads, HEAD_DIM), normal(1, all_rows, heads),
        normal(heads, dtype=torch.float32), normal(width, dtype=torch.float32), 1 + counted(batch, tokens),
        zeros(states, heads, HEAD_DIM, HEAD_DIM, dtype=torch.float32), normal(all_rows, heads, HEAD_DIM),
        normal(HEAD_DIM, dtype=torch.float32), query_start_loc=tokens * counted(batch + 1),
        num_accepted_tokens=filled(batch, 1),
    )  # fmt: skip
    return []


def block_sparse(rows: int) -> list[Result]:
    """Attention to the blocks that a table names, here all of them, of 128 and of 64 keys."""
    # Imported here: where the DSL is not installed, these modules cannot be.
    from flashinfer.cute_dsl.sparse.bsa_attn_sm100_blk64 import bsa_attn_sm100_blk64_fwd
    from flashinfer.cute_dsl.sparse.bsa_attn_sm100_blk128 import bsa_attn_sm100_blk128_fwd

    length, heads = 1024, 4
    q, k, v = (normal(1, length, heads, HEAD_DIM) for _ in range(3))

    def table(block: int) -> tuple[torch.Tensor, int]:
        blocks = length // block
        return counted(blocks).expand(1, heads, blocks, blocks).contiguous(), blocks

    results = [bsa_attn_sm100_blk128_fwd(q, k, v, *table(128))[0]]
    results += [bsa_attn_sm100_blk64_fwd(q, k, v, *table(64), kv_splits=splits)[0] for splits in (1, 2)]
    narrow = zeros(1, length, heads, HEAD_DIM, dtype=torch.float8_e4m3fn)
    bsa_attn_sm100_blk64_fwd(
        narrow, narrow.clone(), narrow.clone(), *table(64),
        q_scale=torch.ones(1, heads, length, device="cuda"),
        k_scale=torch.ones(1, heads, length // 16, device="cuda"),
        v_scale=torch.ones(heads, HEAD_DIM, device="cuda"),
    )  # fmt: skip
    return [(result, lambda: attention(q, k, v)) for result in results]


def caches(pages: int, heads: int = KV_HEADS) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values in pages, (page, head, place, width)."""
    return normal(pages, heads, PAGE, HEAD_DIM), normal(pages, heads, PAGE, HEAD_DIM)


def out_of_pages(cache: torch.Tensor, batch: int) -> torch.Tensor:
    """(batch, length, heads, width) of pages that follow each other."""
    return cache.transpose(1, 2).reshape(batch, -1, cache.shape[1], HEAD_DIM)


def scheduled_prefill(rows: int) -> list[Result]:
    """Prefill by kernels of scheduled tasks, over keys and values as they are and in pages."""
    # The DSL refuses an import within a kernel unless it is made before.
    import flashinfer.attention.prims_ts.kernels.fmha_context.helpers_paged  # noqa: F401

    batch, pages = 2, 8
    length = pages * PAGE
    sizes = {
        "device": "cuda", "batch_size": batch, "max_seq_len_q": length, "max_kv_len": length,
        "num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "q_dtype": torch.bfloat16,
        "k_dtype": torch.bfloat16,
    }  # fmt: skip
    q = normal(batch, length, HEADS, HEAD_DIM)
    k, v = (normal(batch, length, KV_HEADS, HEAD_DIM) for _ in range(2))
    plain, paged = BatchPrefillTSWrapper(), BatchPrefillPagedTSWrapper()
    plain.plan(**sizes)
    out = plain.run(q, k, v)
    paged.plan(**sizes, page_size=PAGE)
    keys, values = caches(batch * pages)
    from_pages = paged.run(
        q.flatten(0, 1), keys, values, length * counted(batch + 1), counted(batch, pages),
        filled(batch, length), validate=False,
    )  # fmt: skip
    return [
        (out, lambda: attention(q, k, v)),
        (
            from_pages.view_as(q),
            lambda: attention(q, out_of_pages(keys, batch), out_of_pages(values, batch)),
        ),
    ]


def scheduled_decode(rows: int) -> list[Result]:
    """Decoding by kernels of scheduled tasks, with keys and values of heads, and with latent ones."""
    batch, pages, heads, latent, rope = 4, 8, 128, 512, 64
    length = pages * PAGE
    table, lengths = counted(batch, pages), filled(batch, length)
    wrapper = BatchDecodePagedTSWrapper()
    wrapper.plan("cuda", batch, HEADS, KV_HEADS, HEAD_DIM, PAGE, length, q_data_type=torch.bfloat16)
    q = normal(batch, HEADS, HEAD_DIM)
    keys, values = caches(batch * pages)
    out = wrapper.run(q, (keys, values), lengths, block_tables=table, validate=False)
    of_latent = BatchMLADecodePagedTSWrapper()
    types = dict.fromkeys(("q_data_type", "kv_data_type", "o_data_type"), torch.bfloat16)
    of_latent.plan(
        "cuda", batch, heads, latent, rope, PAGE, length, max_seq_len_q=1, packed_query=False, **types
    )
    query, cache = normal(batch, 1, heads, latent + rope), normal(batch * pages, PAGE, latent + rope)
    of_latent.run(query, cache, table, lengths, bmm1_scale=0.1, validate=False)
    return [
        (
            out[:, None],
            lambda: attention(q[:, None], out_of_pages(keys, batch), out_of_pages(values, batch)),
        )
    ]


def scheduled_block_sparse(rows: int) -> list[Result]:
    """Attention to the blocks that a table names, here all of them, by kernels of scheduled tasks."""
    length, heads, block = 1024, 4, 128
    blocks, pages = length // block, length // PAGE
    sizes = (1, length, length, heads, heads, HEAD_DIM, block, block)
    ends = (blocks * counted(blocks + 1)).expand(1, heads, blocks + 1).contiguous()
    names = (counted(blocks * blocks) % blocks).expand(1, heads, blocks * blocks).contiguous()
    q, k, v = (normal(1, length, heads, HEAD_DIM) for _ in range(3))
    plain, paged = BlockSparseTSWrapper(), BlockSparsePagedTSWrapper()
    options = {"device": "cuda", "max_blocks_per_row": blocks, "q_data_type": torch.bfloat16}
    plain.plan(*sizes, **options)
    out = plain.run(q, k, v, ends, names, validate=False)
    paged.plan(*sizes, PAGE, **options, use_kv_valid_bits=False)
    keys, values = caches(pages, heads)
    from_pages = paged.run(
        q, (keys, values), counted(1, pages), filled(1, length), ends, names, validate=False
    )
    return [
        (out, lambda: attention(q, k, v)),
        (from_pages, lambda: attention(q, out_of_pages(keys, 1), out_of_pages(values, 1))),
    ]


def window_prefill(rows: int) -> list[Result]:
    """Attention in a window, which FlashInfer has no compiled kernels of: bf16, and MXFP8."""
    length, heads = 256, 8
    q = normal(2 * length, heads, HEAD_DIM)
    k, v = (normal(2 * length, KV_HEADS, HEAD_DIM) for _ in range(2))
    ends = length * counted(3)
    cute_dsl_fmha_ragged_prefill(
        q, k, v, torch.empty_like(q), ends, ends, is_causal=True, sm_scale=HEAD_DIM**-0.5, window_left=127,
        max_qo_len=length, max_kv_len=length,
    )  # fmt: skip
    narrow = [zeros(1, length, KV_HEADS, HEAD_DIM, dtype=torch.float8_e4m3fn) for _ in range(3)]
    scales = [zeros(1, KV_HEADS, length, HEAD_DIM // 32, dtype=torch.uint8) for _ in range(2)]
    out = zeros(1, length, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    cute_dsl_fmha_blockscaled_prefill(*narrow[:2], *scales, narrow[2], out, qk_mode="mxfp8", window_left=127)
    return []


def latent_decode_parts(rows: int) -> list[Result]:
    """Multi-head latent attention put together of parts, and over a window and compressed keys."""
    batch, pages, heads, latent, rope = 4, 8, 128, 512, 64
    length = pages * PAGE
    table, workspace = counted(batch, pages), zeros(128 << 20, dtype=torch.int8)
    cute_dsl_mla_decode(
        query=normal(batch, 1, heads, latent + rope), kv_cache=normal(batch * pages, PAGE, latent + rope),
        workspace_buffer=workspace, kv_lora_rank=latent, qk_rope_head_dim=rope, block_tables=table,
        seq_lens=filled(batch, length), max_seq_len=length, softmax_scale=0.1, cute_dsl_impl="modular",
    )  # fmt: skip
    window = 128
    cute_dsl_hca_decode(
        zeros(batch, 1, heads, latent, dtype=torch.float8_e4m3fn),
        zeros(batch * window, latent, dtype=torch.float8_e4m3fn),
        zeros(batch * pages, PAGE, latent, dtype=torch.float8_e4m3fn), workspace, counted(batch, window),
        table, filled(batch, window + length), filled(batch, window + length), filled(batch, window), 0.1,
    )  # fmt: skip
    return []


def nvfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantized to NVFP4: values, block scales and the scale of all."""
    scale = (E4M3_MAX * E2M1_MAX / x.float().abs().amax()).view(1)
    values, scales = flashinfer.nvfp4_quantize(x, scale, backend="cute-dsl")
    return values, scales, scale


def gemm_fp4(rows: int) -> list[Result]:
    """A GEMM of NVFP4 operands."""
    a, scales_of_a, scale_of_a = nvfp4(normal(rows, DEPTH))
    b, scales_of_b, scale_of_b = nvfp4(normal(WIDTH, DEPTH))
    flashinfer.mm_fp4(a, b.T, scales_of_a, scales_of_b.T, 1 / (scale_of_a * scale_of_b), backend="cute-dsl")
    return []


def gemm_mxfp8(rows: int) -> list[Result]:
    """A GEMM of MXFP8 operands."""
    wide_a, wide_b = normal(rows, DEPTH), normal(WIDTH, DEPTH)
    a, scales_of_a = flashinfer.mxfp8_quantize(wide_a, True, backend="cute-dsl")
    b, scales_of_b = flashinfer.mxfp8_quantize(wide_b, True, backend="cute-dsl")
    flashinfer.mm_mxfp8(a, b.T, scales_of_a, scales_of_b, backend="cute-dsl")
    return []


def gemm_few_rows(rows: int) -> list[Result]:
    """GEMMs of a few rows, in NVFP4 and MXFP8."""
    backend = {"backend": "cutedsl_low_latency"}
    wide_a, wide_b = normal(8, DEPTH), normal(WIDTH, DEPTH)
    a, scales_of_a, scale_of_a = nvfp4(wide_a)
    b, scales_of_b, scale_of_b = nvfp4(wide_b)
    flashinfer.mm_fp4(a, b.T, scales_of_a, scales_of_b.T, 1 / (scale_of_a * scale_of_b), **backend)
    a, scales_of_a = flashinfer.mxfp8_quantize(wide_a, True, backend="cute-dsl")
    b, scales_of_b = flashinfer.mxfp8_quantize(wide_b, True, backend="cute-dsl")
    flashinfer.mm_mxfp8(a, b.T, scales_of_a, scales_of_b, **backend)
    return []


def gemm_bf16_fp4(rows: int) -> list[Result]:
    """A GEMM of bf16 activations and NVFP4 weights."""
    weight = zeros(WIDTH, DEPTH // 2, dtype=torch.uint8)
    scales = zeros(WIDTH, DEPTH // 16, dtype=torch.uint8)
    one = torch.ones(1, device="cuda")
    prepared = flashinfer.gemm.prepare_bf16_fp4_weights(weight, scales, one, backend="cute-dsl")
    flashinfer.gemm.mm_bf16_fp4(normal(64, DEPTH), *prepared[:3], backend="cute-dsl")
    return []


def grouped_gemm(rows: int) -> list[Result]:
    """A GEMM for each of the experts: as many rows of each, in NVFP4, and as they come, in FP8."""
    groups, m, n, k = 2, 128, 256, 512

    def block_scales(size: int) -> torch.Tensor:
        tiles = zeros(groups, size // 128, k // 64, 32, 4, 4, dtype=torch.float8_e4m3fn)
        return tiles.permute(3, 4, 1, 5, 2, 0)

    a, b = (zeros(groups, size, k // 2, dtype=torch.uint8).permute(1, 2, 0) for size in (m, n))
    out = zeros(groups, m, n, dtype=torch.bfloat16).permute(1, 2, 0)
    flashinfer.gemm.grouped_gemm_nt_masked(
        (a, block_scales(m)), (b, block_scales(n)), out, filled(groups, m), ab_dtype="float4_e2m1fn",
        sf_dtype="float8_e4m3fn", c_dtype="bfloat16", sf_vec_size=16,
    )  # fmt: skip
    a = normal(groups * m, k).to(torch.float8_e4m3fn)
    b = normal(groups, n, k).to(torch.float8_e4m3fn)
    scales_of_a = torch.rand(groups * m, k // 128, device="cuda")
    scales_of_b = torch.rand(groups, n // 128, k // 128, device="cuda")
    experts = counted(groups).repeat_interleave(m, output_size=groups * m)
    out = flashinfer.gemm.group_gemm_fp8_nt_groupwise_contiguous(a, b, scales_of_a, scales_of_b, experts)

    def expected() -> torch.Tensor:
        wide_a = (a.float() * scales_of_a.repeat_interleave(128, 1)).view(groups, m, k)
        wide_b = b.float() * scales_of_b.repeat_interleave(128, 1).repeat_interleave(128, 2)
        return (wide_a @ wide_b.transpose(1, 2)).view(groups * m, n)

    return [(out, expected)]


def cases() -> Iterator[tuple[str, Case]]:
    """Name and function of every case."""
    yield "RMSNorm", rms_norm
    yield "RMSNorm, residual", added_rms_norm
    yield "RMSNorm, to FP8", rms_norm_to_fp8
    yield "LayerNorm", layer_norm
    yield "normalized queries and keys", normalized_qk
    yield "quantization, MXFP8", quantize
    yield "gated delta net", gated_delta_net
    yield "gated delta net, chunks in parallel", gated_delta_net_chunks
    yield "gated delta net, drafted tokens", gated_delta_net_verify
    yield "Kimi delta attention", kimi_delta_attention
    yield "Kimi delta attention, drafted tokens", kimi_verify
    if torch.cuda.get_device_capability()[0] != 10:
        return  # What follows needs Blackwell: by FlashInfer's own checks, or by instructions for FP4.
    yield "quantization, FP4", quantize_to_fp4
    yield "RMSNorm, to NVFP4", rms_norm_to_fp4
    yield "attention, decode", decode
    yield "attention, decode, paged", paged_decode
    yield "latent attention, decode", latent_decode
    yield "Mamba 2", state_space_dual
    yield "top-k", top_k
    yield "indexer scores", indexer_scores
    yield "gated delta net, inputs kept", gated_delta_net_replay
    yield "Kimi delta attention, prefill", kimi_prefill
    yield "attention, block-sparse", block_sparse
    yield "attention, window", window_prefill
    yield "attention, scheduled tasks, prefill", scheduled_prefill
    yield "attention, scheduled tasks, decode", scheduled_decode
    yield "attention, scheduled tasks, block-sparse", scheduled_block_sparse
    yield "latent attention, parts and window", latent_decode_parts
    yield "GEMM, NVFP4", gemm_fp4
    yield "GEMM, MXFP8", gemm_mxfp8
    yield "GEMM, few rows", gemm_few_rows
    yield "GEMM, bf16 and NVFP4", gemm_bf16_fp4
    yield "GEMM, grouped", grouped_gemm


if __name__ == "__main__":
    main(__doc__, cases(), ROWS, OTHER_ROWS)
