"""Products: bf16 in both layouts of b, fused with bias and GELU, fp8 with scales, int8, tf32.

Ours are the examples' functions, which choose tiles by the shape alone: nothing is tuned by trial.
Triton's kernel is the same text, in the tile that ex06 would take without cutting the product in
two. cuBLAS chooses by its own rules. All launches of a product count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor as TritonDescriptor

import tiledsl as tile
from benchmarks.case import Case, Contender
from benchmarks.kernels import triton_product, triton_product_by_pointers
from benchmarks.measure import checked, sets_of, those_that_run
from examples import ex06_fast_matmul as ex06
from examples import ex07_fp8_matmul as ex07

SIZES = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
SHAPES = [*SIZES, (8192, 8192, 1024), (2048, 11008, 4096), (4097, 4099, 4101)]
QUICK = [(1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192)]
OTHERS = [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)]
"""Shapes of the other types."""

_ROWS = 256
"""Rows of a result that are compared with float64."""


class Choice(NamedTuple):
    """How Triton computes a product."""

    block: tuple[int, int, int]
    programs: int
    group: int
    num_warps: int
    num_stages: int


def choose(m: int, n: int, k: int, size: int) -> Choice:
    """Return how Triton computes an m by n by k product of elements of `size` bytes.

    As ex06 does, but for its launches of several parts; and where rows are no multiple of 16 bytes,
    so that threads load them one element at a time, in a smaller tile.
    """
    if k * size % 16 or n * size % 16:
        return Choice((128, 128, 32), math.ceil(m / 128) * math.ceil(n / 128), 8, 8, 3)
    one = ex06.part(m, (0, n), k, size, ex06.choose_block(m, n)[0])
    options = one.options
    return Choice(
        one.block, one.programs, options["GROUP"], options["num_warps"], options["num_stages"]
    )


@dataclass
class Operands:
    """Sets of inputs and outputs of a product; b is (n, k) if turned, else (k, n)."""

    a: list[torch.Tensor]
    b: list[torch.Tensor]
    c: list[torch.Tensor]
    turned: bool
    more: dict[str, torch.Tensor] = field(default_factory=dict)

    def b_matrix(self, number: int) -> torch.Tensor:
        """Return a set's b as (k, n)."""
        return self.b[number].T if self.turned else self.b[number]

    def error(self, after: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
        """Return the relative error of some rows of the first result; NaN poisons all of it.

        Args:
            after: What is done to a product of float64, given the numbers of its rows.
        """
        c, a = self.c[0], self.a[0]
        rows = torch.randint(len(a), (min(_ROWS, len(a)),), device="cuda")
        bits = a.view(torch.uint8) if a.element_size() == 1 else a  # fp8 has no indexing
        some = bits[rows].view(a.dtype).float()
        wanted = after(some.double() @ self.b_matrix(0).float().double(), rows)
        found = float((c[rows].double() - wanted).norm() / wanted.norm())
        return found if bool(torch.isfinite(c).all()) else math.nan


def _random(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-100, 100, (rows, columns), device="cuda", dtype=dtype)
    return torch.randn(rows, columns, device="cuda").to(dtype)


def _operands(
    shape: tuple[int, int, int], sets: int, dtype: torch.dtype, out: torch.dtype, turned: bool
) -> Operands:
    m, n, k = shape
    torch.manual_seed(0)
    return Operands(
        [_random(m, k, dtype) for _ in range(sets)],
        [_random(n, k, dtype) if turned else _random(k, n, dtype) for _ in range(sets)],
        [torch.empty(m, n, device="cuda", dtype=out) for _ in range(sets)],
        turned,
    )


def _described(found: Operands, choice: Choice) -> list[tuple[Any, Any, Any]]:
    """Return Triton's descriptors of a, b and c, for each set."""
    bm, bn, bk = choice.block
    kind = TritonDescriptor.from_tensor
    right = [bn, bk] if found.turned else [bk, bn]
    return [
        (kind(a, [bm, bk]), kind(b, right), kind(c, [bm, bn]))
        for a, b, c in zip(found.a, found.b, found.c, strict=True)
    ]


def _scaled(
    found: Operands, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> Callable[[int], object]:
    """Launch ex07's kernel for each part of the product, as `ex06.multiply` does its own."""
    m, n = found.c[0].shape
    parts = ex06.cut(m, n, found.a[0].shape[1], found.a[0].itemsize)

    def described(number: int, one: ex06.Part) -> tuple[tile.TensorDescriptor, ...]:
        (bm, bn, bk), columns = one.block, slice(one.first, one.last)
        return (
            tile.TensorDescriptor(found.a[number], (bm, bk)),
            tile.TensorDescriptor(found.b[number][columns], (bn, bk)),
            tile.TensorDescriptor(found.c[number][:, columns], (bm, bn)),
            tile.TensorDescriptor(a_scale, (bm,)),
            tile.TensorDescriptor(b_scale[columns], (bn,)),
        )

    def run(number: int) -> None:
        for one in parts:
            ex07.scaled_matmul[one.programs,](*described(number, one), **one.options)

    return run


def _multiply(found: Operands, bias: Any = None, **options: Any) -> Callable[[int], object]:
    def run(number: int) -> None:
        a, b, c = found.a[number], found.b[number], found.c[number]
        ex06.multiply(a, b, bias, found.turned, c, **options)

    return run


def _triton(
    found: Operands, choice: Choice, acc: Any = tl.float32, precision: str = "ieee"
) -> Callable[[int], object]:
    (m, k), n = found.a[0].shape, found.c[0].shape[1]
    bm, bn, bk = choice.block
    if k * found.a[0].element_size() % 16:
        grid = (math.ceil(m / bm), math.ceil(n / bn))

        def by_pointers(number: int) -> None:
            a, b, c = found.a[number], found.b_matrix(number), found.c[number]
            triton_product_by_pointers[grid](
                a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), bm, bn, bk,
                num_warps=choice.num_warps, num_stages=choice.num_stages,
            )  # fmt: skip

        return by_pointers
    if found.c[0].element_size() == 4:  # its epilogue takes a tile's worth of shared memory
        tiles = math.ceil(m / 128) * math.ceil(n / 128)
        bm, bn = 128, 128
        choice = choice._replace(block=(bm, bn, bk), programs=min(ex06.PROCESSORS, tiles))
    described = _described(found, choice)
    extra = [found.more.get(name) for name in ("bias", "scale_a", "scale_b")]
    stages = min(choice.num_stages, 3 if bm * bn > 128 * 128 else 4)

    def run(number: int) -> None:
        triton_product[choice.programs,](
            *described[number], *extra, m, n, k, bm, bn, bk, choice.group, found.turned, acc,
            precision, choice.programs, num_warps=choice.num_warps, num_stages=stages,
        )  # fmt: skip

    return run


Makers = Callable[[Operands, Choice], Sequence[tuple[str, Callable[[int], object]]]]


def _case(
    what: str, shape: tuple[int, int, int], base: str, turned: bool, makers: Makers,
    dtype: torch.dtype, out: torch.dtype, most: float,
    after: Callable[[Operands, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    more: Callable[[int, int], dict[str, torch.Tensor]] | None = None,
) -> Case:  # fmt: skip
    """Make a case: what is compared, on operands of a shape."""
    m, n, k = shape
    size, wide = dtype.itemsize, out.itemsize
    sets = sets_of((m + n) * k * size + m * n * wide)

    def contenders() -> list[Contender]:
        found = _operands(shape, sets, dtype, out, turned)
        found.more = more(m, n) if more is not None else {}

        def error() -> float:
            return found.error(lambda c, rows: c if after is None else after(found, c, rows))

        def made(name: str, run: Callable[[int], object]) -> Contender:
            for c in found.c:
                c.fill_(math.nan if out.is_floating_point else -(2**31))
            return checked(name, run, error, most)

        some = makers(found, choose(m, n, k, size))
        return those_that_run([lambda one=one: made(*one) for one in some])

    text = f"{m}" if m == n == k else f"{m}x{n}x{k}"
    # Where threads are busy and b lies either way, the power limit is the same.
    long = 2 * m * n * k > 1e11 and turned
    work = 2 * m * n * k / 1e9
    return Case("gemm", what, text, work, "TFLOP/s", base, contenders, sets, long)


# --- families ------------------------------------------------------------------------------------


def _bf16(found: Operands, choice: Choice) -> list[tuple[str, Callable[[int], object]]]:
    def library(i: int) -> None:
        torch.mm(found.a[i], found.b_matrix(i), out=found.c[i])

    return [
        ("tiledsl", _multiply(found)),
        ("cuBLAS", library),
        ("triton", _triton(found, choice)),
    ]


def _fused(found: Operands, choice: Choice) -> list[tuple[str, Callable[[int], object]]]:
    bias = found.more["bias"]
    gelu = torch.nn.functional.gelu

    def plain(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(gelu(torch.addmm(bias, a, b)))

    compiled = torch.compile(plain, dynamic=False)

    def unfused(i: int) -> None:
        torch.addmm(bias, found.a[i], found.b_matrix(i), out=found.c[i])
        found.c[i].copy_(gelu(found.c[i]))

    return [
        ("tiledsl", _multiply(found, bias)),
        ("cuBLAS + gelu", unfused),
        ("torch.compile", lambda i: compiled(found.a[i], found.b_matrix(i), found.c[i])),
        ("triton", _triton(found, choice)),
    ]


def _with_gelu(found: Operands, c: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(c + found.more["bias"].double())


def _fp8(found: Operands, choice: Choice) -> list[tuple[str, Callable[[int], object]]]:
    a_scale, b_scale = found.more["scale_a"], found.more["scale_b"]

    def library(i: int) -> None:
        torch._scaled_mm(  # pyright: ignore[reportPrivateUsage]
            found.a[i], found.b_matrix(i), a_scale[:, None], b_scale[None, :],
            out_dtype=torch.bfloat16, use_fast_accum=True, out=found.c[i],
        )  # fmt: skip

    return [
        ("tiledsl", _scaled(found, a_scale, b_scale)),
        ("cuBLASLt", library),
        ("triton", _triton(found, choice)),
    ]


def _with_scales(found: Operands, c: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    a, b = found.more["scale_a"].double(), found.more["scale_b"].double()
    return c * a[rows][:, None] * b[None, :]


def _int8(found: Operands, choice: Choice) -> list[tuple[str, Callable[[int], object]]]:

    def library(i: int) -> None:
        torch._int_mm(found.a[i], found.b_matrix(i), out=found.c[i])  # pyright: ignore[reportPrivateUsage]

    return [
        ("tiledsl", _multiply(found)),
        ("cuBLASLt", library),
        ("triton", _triton(found, choice, tl.int32)),
    ]


def _tf32(found: Operands, choice: Choice) -> list[tuple[str, Callable[[int], object]]]:
    def library(i: int) -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.mm(found.a[i], found.b_matrix(i), out=found.c[i])
        torch.backends.cuda.matmul.allow_tf32 = False

    return [
        ("tiledsl", _multiply(found, precision="tf32")),
        ("cuBLAS", library),
        ("triton", _triton(found, choice, precision="tf32")),
    ]


def _bias(m: int, n: int) -> dict[str, torch.Tensor]:
    return {"bias": torch.randn(n, device="cuda", dtype=torch.bfloat16)}


def _scales(m: int, n: int) -> dict[str, torch.Tensor]:
    return {
        "scale_a": torch.rand(m, device="cuda") + 0.5,
        "scale_b": torch.rand(n, device="cuda") + 0.5,
    }


def cases(quick: bool) -> Iterator[Case]:
    """Yield the family's cases."""
    bf16, f32, fp8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
    for turned in (True, False):
        what = "bf16 a @ b.T" if turned else "bf16 a @ b"
        for shape in QUICK if quick else SHAPES:
            yield _case(what, shape, "cuBLAS", turned, _bf16, bf16, bf16, 4e-3)
    size = (8192, 8192, 8192)
    yield _case(
        "bf16 gelu(a @ b.T + bias)", size, "cuBLAS + gelu", True, _fused, bf16, bf16, 6e-3,
        _with_gelu, _bias,
    )  # fmt: skip
    for shape in QUICK[2:] if quick else [*OTHERS, (2048, 11008, 4096)]:
        yield _case(
            "fp8 scaled a @ b.T", shape, "cuBLASLt", True, _fp8, fp8, bf16, 2e-2,
            _with_scales, _scales,
        )  # fmt: skip
    for shape in QUICK[2:] if quick else OTHERS:
        yield _case("int8 a @ b.T", shape, "cuBLASLt", True, _int8, torch.int8, torch.int32, 1e-9)
    for turned in (True, False):
        what = "f32 (tf32) a @ b.T" if turned else "f32 (tf32) a @ b"
        for shape in QUICK[2:] if quick else OTHERS[1:]:
            yield _case(what, shape, "cuBLAS", turned, _tf32, f32, f32, 1e-3)
