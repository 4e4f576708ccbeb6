"""Products on AMD whose tiles fill a thread's registers: none goes to memory, and results are right.

The kernels are those of `benchmarks.amd_assembly`, at the sizes whose tiles leave the fewest
registers for the rest. They read operands again from shared memory in every trip, load the next
trip's in turns, and multiply in two halves (`relieve_registers`, `split_depth`).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiledsl as tile
from benchmarks import amd_assembly
from benchmarks.amd_loops import main_loop

FULL = (
    ("matmul bf16 128x128x64, 4 warps", "gfx1100"),
    ("matmul bf16 128x128x64, 4 warps", "gfx1201"),
    ("attention 128x64, d 64, 4 warps", "gfx1100"),
    ("attention 128x64, d 64, 4 warps", "gfx1201"),
    ("attention 128x64, d 128, 8 warps", "gfx1100"),
)
"""Cases of the benchmark that once spilled."""


def case_of(name: str) -> amd_assembly.Case:
    """Give the benchmark's case of that name."""
    return next(case for case in amd_assembly.CASES if case.name == name)


def options_of(case: amd_assembly.Case) -> dict[str, Any]:
    """Give a case's constants and options."""
    constants = {name: getattr(tile, str(v), v) for name, v in case.constexprs.items()}
    return {**constants, "num_warps": case.num_warps, "num_stages": case.num_stages}


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Give small multiples of 1/4, whose products and sums bf16's accumulators keep exactly."""
    return (rng.integers(-8, 9, shape) / 4).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(("name", "chip"), FULL)
def test_no_register_goes_to_memory(name: str, chip: str) -> None:
    case = case_of(name)
    text = amd_assembly.our_assembly(case, chip)
    assert main_loop(text).spilled == 0
    assert "scratch_" not in text


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
@pytest.mark.parametrize("depth", [16, 144, 256])
def test_a_product_in_halves_is_right_at_ragged_edges(chip: str, mode: Any, depth: int) -> None:
    rng = np.random.default_rng(depth)
    rows, columns = 112, 96
    a, b = halves(rng, rows, depth), halves(rng, depth, columns)
    c = np.full((rows, columns), np.nan, ml_dtypes.bfloat16)
    case = case_of(FULL[0][0])
    with tile.device(f"emulate:{chip}", mode=mode):
        case.kernel[(1, 1)](
            a, b, c, rows, columns, depth, depth, columns, columns, **options_of(case)
        )
    wanted = (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize(("name", "chip"), FULL[2:])
def test_attention_that_reads_its_queries_again_is_right(name: str, chip: str, mode: Any) -> None:
    case = case_of(name)
    options = options_of(case)
    rng = np.random.default_rng(7)
    length, width = 144, options["D"]
    q, k, v = (halves(rng, 1, length, width) for _ in range(3))
    out = np.full_like(q, np.nan)
    scale = 1 / width
    with tile.device(f"emulate:{chip}", mode=mode):
        case.kernel[(2, 1)](q, k, v, out, length, scale, **options)
    x, y, z = (one[0].astype(np.float32) for one in (q, k, v))
    weights = np.exp2(scale * (x @ y.T))
    wanted = weights @ z / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out[0].astype(np.float32), wanted, rtol=2e-2, atol=2e-2)
