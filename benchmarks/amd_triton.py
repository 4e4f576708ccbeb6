"""Triton's counterparts of `amd_assembly`'s kernels, compiled for AMD without a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Multiply row-major matrices."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for start in range(0, K, BK):
        rest = K - start
        x = tl.load(
            a + m[:, None] * sa + (start + k)[None, :],
            mask=(m[:, None] < M) & (k[None, :] < rest),
            other=0.0,
        )
        y = tl.load(
            b + (start + k)[:, None] * sb + n[None, :],
            mask=(k[:, None] < rest) & (n[None, :] < N),
            other=0.0,
        )
        acc = tl.dot(x, y, acc)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * sc + n[None, :], acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def attention(q, k, v, out, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Attend with one head's queries to all its keys; `scale` is that of base 2."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n, d = tl.arange(0, BN), tl.arange(0, D)
    head = tl.program_id(1) * length * D
    x = tl.load(q + head + m[:, None] * D + d[None, :], mask=m[:, None] < length, other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, length, BN):
        inside = start + n < length
        y = tl.load(
            k + head + (start + n)[None, :] * D + d[:, None], mask=inside[None, :], other=0.0
        )
        s = tl.where(inside[None, :], tl.dot(x, y) * scale, float("-inf"))
        highest = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - highest[:, None])
        shrink = tl.exp2(top - highest)
        total = total * shrink + tl.sum(p, 1)
        z = tl.load(
            v + head + (start + n)[:, None] * D + d[None, :], mask=inside[:, None], other=0.0
        )
        acc = tl.dot(p.to(q.dtype.element_ty), z, acc * shrink[:, None])
        top = highest
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + head + m[:, None] * D + d[None, :], result, mask=m[:, None] < length)


_KERNELS = {"matmul": matmul, "attention": attention}
_TYPES = {"float32": "fp32", "int32": "i32"}


def assembly(
    kernel: str,
    chip: str,
    signature: Mapping[str, str],
    constexprs: Mapping[str, object],
    num_warps: int,
    num_stages: int,
) -> str:
    """Compile a kernel; types are written as for `tile.compile`, "*bf16:16"."""
    fixed = {name: getattr(tl, str(v), v) for name, v in constexprs.items()}
    names = [*signature, *constexprs]
    types = {name: text.partition(":")[0] for name, text in signature.items()}
    types = {name: text.replace("fp8e4m3", "fp8e4nv") for name, text in types.items()}
    aligned = [name for name, text in signature.items() if text.endswith(":16")]
    source = ASTSource(
        _KERNELS[kernel],
        {**types, **dict.fromkeys(constexprs, "constexpr")},
        fixed,
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    lanes = 64 if chip.startswith("gfx9") else 32
    options = {"num_warps": num_warps, "num_stages": num_stages}
    made = triton.compile(source, target=GPUTarget("hip", chip, lanes), options=options)
    return str(made.asm["amdgcn"])
