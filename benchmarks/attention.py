"""Attention forward, causal and not: ex05, in the form it chooses, beside others' in bf16 and f16.

cuDNN's is there in both types; FlashAttention's and Triton's tutorial's in bf16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.case import Case, Contender
from benchmarks.measure import checked, sets_of, those_that_run
from examples.ex05_attention import choose_form, launch

SHAPES = [(4, 32, 4096, 128), (2, 16, 16384, 128), (4, 32, 4096, 64), (16, 16, 1024, 128)]
"""Batch, heads, length, head size."""
_ROWS = 64
"""Queries of each of the first heads that are compared with float64."""


@triton.jit
def triton_attention(
    q, k, v, out, length, scale,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Compute what ex05 does, one block of queries a program; all lengths are whole blocks."""
    head = tl.program_id(1)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_Q
    base = head * length
    queries = q.load([base + first, 0])
    best = tl.full((BLOCK_Q,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, D), tl.float32)
    factor = scale * 1.4426950408889634
    end = first + BLOCK_Q if CAUSAL else length
    for start in range(0, end, BLOCK_K):
        scores = tl.dot(queries, k.load([base + start, 0]).T) * factor
        if CAUSAL and start + BLOCK_K > first:
            rows, columns = first + tl.arange(0, BLOCK_Q), start + tl.arange(0, BLOCK_K)
            scores = tl.where(rows[:, None] >= columns[None, :], scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new_best[:, None])
        rescale = tl.math.exp2(best - new_best)
        total = total * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), v.load([base + start, 0]), acc * rescale[:, None])
        best = new_best
    out.store([base + first, 0], (acc / total[:, None]).to(q.dtype))


Tensors = Sequence[torch.Tensor]
"""q, k, v and the result: (batch * heads, length, d)."""


def _ours(some: Tensors, causal: bool) -> None:
    q, k, v, out = some
    heads, length, d = q.shape
    launch(q, k, v, out, causal, choose_form(heads, length, d, causal))


def _triton(some: Tensors, causal: bool) -> Callable[[], object]:
    from triton.tools.tensor_descriptor import TensorDescriptor

    heads, length, d = some[0].shape
    described = [TensorDescriptor.from_tensor(one.view(-1, d), [128, d]) for one in some]

    def run() -> None:
        triton_attention[length // 128, heads](
            *described, length, 1 / math.sqrt(d), causal, 128, 128, d, num_warps=8, num_stages=2
        )

    return run


def _library(backend: Any, some: Tensors, batch: int, causal: bool) -> torch.Tensor:
    heads, length, d = some[0].shape
    q, k, v = (one.view(batch, heads // batch, length, d) for one in some[:3])
    with sdpa_kernel(backend):
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return made.reshape(heads, length, d)


def _error(some: Tensors, found: torch.Tensor, causal: bool) -> float:
    """Return the error of some queries of two heads; NaN poisons all of it."""
    q, k, v = (one[:2].double() for one in some[:3])
    length, d = q.shape[1:]
    rows = torch.randint(length, (_ROWS,), device="cuda").sort().values
    scores = q[:, rows] @ k.mT / math.sqrt(d)
    if causal:
        seen = rows[:, None] >= torch.arange(length, device="cuda")[None, :]
        scores = scores.masked_fill(~seen, -math.inf)
    wanted = torch.softmax(scores, -1) @ v
    error = float((found[:2, rows].double() - wanted).norm() / wanted.norm())
    return error if bool(torch.isfinite(found).all()) else math.nan


def _case(shape: tuple[int, int, int, int], causal: bool, half: bool) -> Case:
    batch, heads, length, d = shape
    size = 4 * batch * heads * length * d * 2
    sets = sets_of(size)

    def contenders() -> list[Contender]:
        torch.manual_seed(0)
        dtype = torch.float16 if half else torch.bfloat16
        some = [
            list(torch.randn(4, batch * heads, length, d, device="cuda", dtype=dtype))
            for _ in range(sets)
        ]

        def writing(name: str, run: Callable[[int], object]) -> Contender:
            some[0][3].fill_(math.nan)
            return checked(name, run, lambda: _error(some[0], some[0][3], causal), 1e-2)

        def library(name: str, backend: Any) -> Contender:
            def run(number: int) -> torch.Tensor:
                return _library(backend, some[number], batch, causal)

            return checked(name, run, lambda: _error(some[0], run(0), causal), 1e-2)

        def by_triton() -> Contender:
            runs = [_triton(one, causal) for one in some]
            return writing("triton", lambda number: runs[number]())

        makers = [
            lambda: writing("tiledsl", lambda number: _ours(some[number], causal)),
            lambda: library("cuDNN", SDPBackend.CUDNN_ATTENTION),
        ]
        if not half:
            makers += [lambda: library("flash", SDPBackend.FLASH_ATTENTION), by_triton]
        return those_that_run(makers)

    work = 4 * batch * heads * length**2 * d * (0.5 if causal else 1) / 1e9
    what = f"d {d}, {'causal' if causal else 'full'}{', f16' if half else ''}"
    text = f"{batch}x{heads}x{length}"
    long = d == 128 and length > 2048 and not half
    return Case("attention", what, text, work, "TFLOP/s", "cuDNN", contenders, sets, long)


def cases(quick: bool) -> Iterator[Case]:
    """Yield the family's cases."""
    for half in (False,) if quick else (False, True):
        for shape in SHAPES[:1] if quick else SHAPES:
            for causal in (False, True):
                yield _case(shape, causal, half)
