"""The tutorial's first kernels as they are: vector add, and ex04's product by pointers.

The product runs as compiled for the GPU at hand, and as compiled for sm_80, whose matrix
instruction, `mma.sync`, all later chips have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import triton
import triton.language as tl

import tiledsl as tile
from benchmarks.case import Case, Contender
from benchmarks.kernels import triton_product_by_pointers
from benchmarks.measure import checked, relative_error, those_that_run
from examples.ex01_vector_add import add
from examples.ex04_matmul import matmul
from tiledsl.launch import Loaded

ELEMENTS = 1 << 26
SIDE = 4096
_BLOCK = (128, 128, 64)
_OPTIONS = {"num_warps": 8, "num_stages": 3}
_OLD, _OLD_OPTIONS = "sm_80", {"num_warps": 4, "num_stages": 3}


@triton.jit
def triton_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)


def _additions() -> list[Contender]:
    torch.manual_seed(0)
    x, y = torch.randn(2, ELEMENTS, device="cuda")
    out = torch.empty_like(x)
    # As many bytes as two reads and a write: half as many elements again.
    source = torch.randn(ELEMENTS * 3 // 2, device="cuda")
    copied = torch.empty_like(source)
    grid = (math.ceil(ELEMENTS / 1024),)

    def made(name: str, run: Callable[[], object]) -> Contender:
        out.fill_(math.nan)
        return checked(name, lambda _: run(), lambda: relative_error(out, x + y), 1e-9)

    return [
        Contender("copy", lambda _: copied.copy_(source)),
        made("tiledsl", lambda: add[grid](x, y, out, ELEMENTS, BLOCK=1024)),
        made("triton", lambda: triton_add[grid](x, y, out, ELEMENTS, BLOCK=1024)),
    ]


def _products() -> list[Contender]:
    torch.manual_seed(0)
    a, b = (torch.randn(SIDE, SIDE, device="cuda").half() for _ in range(2))
    c = torch.empty_like(a)
    wanted = a.double() @ b.double()
    blocks: dict[str, int] = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), _BLOCK, strict=True))
    grid = (SIDE // _BLOCK[0], SIDE // _BLOCK[1])
    sizes = (SIDE,) * 3
    strides = (SIDE, 1) * 3
    loaded = _for_sm_80(blocks)
    addresses = [one.data_ptr() for one in (a, b, c)]
    whole = (*grid, 1)

    def ours() -> None:
        matmul[grid](a, b, c, None, *sizes, *strides, FUSED=False, **blocks, **_OPTIONS)

    def old() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        loaded.launch(whole, [*addresses, *sizes, *strides], stream)

    def theirs() -> None:
        triton_product_by_pointers[grid](a, b, c, *sizes, *strides, *_BLOCK, **_OPTIONS)

    def made(name: str, run: Callable[[], object]) -> Contender:
        c.fill_(math.nan)
        return checked(name, lambda _: run(), lambda: relative_error(c, wanted), 1e-3)

    runs: dict[str, Callable[[], object]] = {
        "tiledsl": ours,
        "tiledsl, mma.sync": old,
        "cuBLAS": lambda: torch.mm(a, b, out=c),
        "triton": theirs,
    }
    return those_that_run(
        [lambda name=name, run=run: made(name, run) for name, run in runs.items()]
    )


def _for_sm_80(blocks: dict[str, int]) -> Loaded:
    """Compile ex04's product for sm_80 and have the driver translate its PTX for this GPU."""
    numbers = dict.fromkeys(("M", "N", "K", "stride_am", "stride_bk", "stride_cm"), "i32:16")
    arrays = dict.fromkeys(("a", "b", "c"), "*fp16:16")
    ones = dict.fromkeys(("stride_ak", "stride_bn", "stride_cn"), "1")
    compiled = tile.compile(
        matmul, {**arrays, **numbers, **ones}, {"bias": None, "FUSED": False, **blocks},
        target=_OLD, **_OLD_OPTIONS,
    )  # fmt: skip
    ptx = compiled.asm["ptx"]
    assert isinstance(ptx, str)
    compiled.artifact = replace(compiled.artifact, binary=ptx.encode())
    return Loaded(compiled, "cuda:0")


def cases(quick: bool) -> Iterator[Case]:
    """Yield the family's cases."""
    del quick
    yield Case(
        "tutorial", "vector add f32", "2^26", 12 * ELEMENTS / 1e6, "GB/s", "copy", _additions
    )
    yield Case(
        "tutorial", "ex04 f16 a @ b", str(SIDE), 2 * SIDE**3 / 1e9, "TFLOP/s", "cuBLAS", _products
    )
