"""Softmax and layer norm along rows of bf16: what moves memory, beside a copy of the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

import tiledsl as tile
from benchmarks.case import Case, Contender
from benchmarks.kernels import triton_layer_norm, triton_softmax
from benchmarks.measure import checked, relative_error, those_that_run
from examples.ex02_softmax import softmax_into
from examples.ex03_layer_norm import layer_norm_into

COLUMNS = (1024, 2048, 3000, 4096, 8192, 16384, 32768)
QUICK = (3000, 8192)
COMPILED = (1024, 3000, 8192, 32768)
"""Columns for which torch.compile takes part: it takes seconds each."""
_ELEMENTS = 1 << 27
"""Elements of an array, 256 MB: four times the L2 cache."""
_EPS = 1e-5
_CHECKED = 64
"""Rows of a result that are compared with float64."""

Run = Callable[[], object]


class _Rows:
    """Rows to normalize, and how long they are."""

    def __init__(self, columns: int) -> None:
        torch.manual_seed(0)
        self.count = _ELEMENTS // columns
        self.x = torch.randn(self.count, columns, device="cuda").bfloat16()
        self.out = torch.empty_like(self.x)
        block = tile.next_power_of_2(columns)
        # Triton's: a thread holds 16 or 32 elements of a row. Ours are the examples' choice.
        self.options = {"BLOCK": block, "num_warps": min(32, max(4, block // 1024))}

    def contenders(
        self, wanted: torch.Tensor, writing: dict[str, Run], returning: dict[str, Run]
    ) -> list[Contender]:
        """Make contenders of functions that write `out`, and of those that return a tensor."""

        def made(name: str, run: Run) -> Contender:
            self.out.fill_(math.nan)

            def error() -> float:
                found = run() if name in returning else self.out
                assert isinstance(found, torch.Tensor)
                finite = bool(torch.isfinite(found).all())
                return relative_error(found[:_CHECKED], wanted) if finite else math.nan

            return checked(name, lambda _: run(), error, 1e-2)

        copy = Contender("copy", lambda _: self.out.copy_(self.x))
        runs = [*writing.items(), *returning.items()]
        return [copy, *those_that_run([lambda one=one: made(*one) for one in runs])]


def _softmax(columns: int) -> list[Contender]:
    rows = _Rows(columns)
    x, out, options, grid = rows.x, rows.out, rows.options, (rows.count,)
    compiled = torch.compile(lambda t: torch.softmax(t, -1), dynamic=False)
    return rows.contenders(
        x[:_CHECKED].double().softmax(-1),
        {
            "tiledsl": lambda: softmax_into(x, out),
            "triton": lambda: triton_softmax[grid](x, out, columns, columns, **options),
        },
        {
            "torch": lambda: torch.softmax(x, -1),
            **({"torch.compile": lambda: compiled(x)} if columns in COMPILED else {}),
        },
    )


def _layer_norm(columns: int) -> list[Contender]:
    rows = _Rows(columns)
    options, grid = rows.options, (rows.count,)
    weight, bias = torch.randn(2, columns, device="cuda").bfloat16()
    mean, rstd = torch.empty(2, rows.count, device="cuda")
    arrays = (rows.x, weight, bias, rows.out, mean, rstd)

    def library(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (columns,), weight, bias, _EPS)

    compiled = torch.compile(library, dynamic=False)
    few = rows.x[:_CHECKED].double()
    wanted = torch.nn.functional.layer_norm(few, (columns,), weight.double(), bias.double(), _EPS)
    return rows.contenders(
        wanted,
        {
            "tiledsl": lambda: layer_norm_into(*arrays, _EPS),
            "triton": lambda: triton_layer_norm[grid](*arrays, columns, columns, _EPS, **options),
        },
        {
            "torch": lambda: library(rows.x),
            **({"torch.compile": lambda: compiled(rows.x)} if columns in COMPILED else {}),
        },
    )


def cases(quick: bool) -> Iterator[Case]:
    """Yield the family's cases."""
    for what, make in (("softmax bf16", _softmax), ("layer norm bf16", _layer_norm)):
        for columns in QUICK if quick else COLUMNS:
            work = 4 * (_ELEMENTS // columns) * columns / 1e6  # bytes read and written
            yield Case(
                "norm", what, str(columns), work, "GB/s", "copy",
                lambda make=make, columns=columns: make(columns),
            )  # fmt: skip
