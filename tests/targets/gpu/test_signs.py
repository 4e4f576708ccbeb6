"""What is taken for never negative, which only decides which of two right ways is taken."""

from __future__ import annotations

import pytest

from tiledsl.dialects.context import parse
from tiledsl.targets.gpu.signs import is_hardly_negative

HEAD = """
llvm.func @kernel(%x: vector<4xf32>, %i: vector<4xi32>, %f: f32, %c: i1) {
  %zero = arith.constant dense<0.0> : vector<4xf32>
  %minus = arith.constant dense<-1.0> : vector<4xf32>
  %e = math.exp2 %x : vector<4xf32>
"""


def guess(text: str) -> bool:
    module = parse(f"{HEAD}{text}\nllvm.return\n}}")
    (*_, last, _end) = module.body.operations[0].regions[0].blocks[0].operations
    return is_hardly_negative(last.operation.results[0])


@pytest.mark.parametrize(
    "text",
    [
        "%y = math.absf %x : vector<4xf32>",
        "%y = arith.mulf %x, %x : vector<4xf32>",
        "%y = arith.maximumf %x, %zero : vector<4xf32>",
        "%y = arith.addf %e, %e : vector<4xf32>",
        "%y = arith.select %c, %e, %zero : vector<4xf32>",
        "%y = vector.shuffle %e, %zero [0, 5] : vector<4xf32>, vector<4xf32>",
        """%a = llvm.call_intrinsic "llvm.nvvm.ex2.approx.ftz"(%f) : (f32) -> f32
           %y = vector.from_elements %a, %a : vector<2xf32>""",
        """%n = arith.constant dense<23> : vector<4xi32>
           %s = arith.shli %i, %n : vector<4xi32>
           %p = vector.bitcast %s : vector<4xi32> to vector<4xf32>
           %y = arith.mulf %e, %p : vector<4xf32>""",
    ],
)
def test_what_is_made_of_exponentials_and_squares_is_hardly_negative(text: str) -> None:
    assert guess(text)


@pytest.mark.parametrize(
    "text",
    [
        "%y = arith.addf %x, %x : vector<4xf32>",
        "%y = arith.mulf %e, %x : vector<4xf32>",
        "%y = arith.maximumf %x, %minus : vector<4xf32>",
        "%y = arith.subf %e, %e : vector<4xf32>",
        "%y = vector.bitcast %i : vector<4xi32> to vector<4xf32>",
        "%y = vector.broadcast %f : f32 to vector<4xf32>",
    ],
)
def test_nothing_is_said_of_other_numbers(text: str) -> None:
    assert not guess(text)
