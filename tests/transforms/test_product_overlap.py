"""Which products fly over the end of a trip: those whose operands stay where they are read."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import re

import pytest

import tiledsl as tile
from examples.ex06_fast_matmul import matmul
from tests.kernels.ptx_text import loop_of
from tiledsl.targets.nvptx.chips import CHIPS
from tiledsl.targets.nvptx.ptxas import assemble, find_ptxas

FLIPPED = {"a": "256x32", "b": "32x128", "c": "256x128"}


@tile.jit
def product(a, b, c, M, N, K, TURNED: tile.constexpr, TWICE: tile.constexpr, SEEN: tile.constexpr):
    left = tile.make_tensor_descriptor(a, [M, K], [K, 1], [64, 64])
    right = tile.make_tensor_descriptor(b, [N, K] if TURNED else [K, N], [K, 1], [64, 64])
    out = tile.make_tensor_descriptor(c, [M, N], [N, 1], [64, 64])
    acc = tile.zeros((64, 64), tile.float32)
    for k in range(0, K, 64):
        x = left.load([0, k])
        if TWICE:
            x = x * 2
        y = tile.trans(right.load([0, k])) if TURNED else right.load([k, 0])
        acc = tile.dot(x, y, acc, input_precision="tf32")
        if SEEN:
            acc = acc * 2
    out.store([0, 0], acc)


@pytest.mark.parametrize(
    ("dtype", "turned", "twice", "seen", "flies"),
    [
        ("fp16", True, False, False, True),
        ("fp16", False, False, False, True),
        ("fp32", True, False, False, True),
        ("fp8e4m3", True, False, False, True),
        # n is contiguous where k must be: the operand is stored again, in one place for all trips.
        ("fp32", False, False, False, False),
        ("fp8e4m3", False, False, False, False),
        ("fp16", True, True, False, False),
        ("fp16", True, False, True, False),
    ],
)
def test_a_product_flies_on_if_the_loop_only_adds_to_it_and_slots_hold_its_operands(
    dtype: str, turned: bool, twice: bool, seen: bool, flies: bool
) -> None:
    types = {"a": f"*{dtype}:16", "b": f"*{dtype}:16", "c": "*fp32:16"}
    sizes = dict.fromkeys("MNK", "i32:16")
    constants = {"TURNED": turned, "TWICE": twice, "SEEN": seen}
    made = tile.compile(product, types | sizes, constants, target="sm_90a")
    ptx = str(made.asm["ptx"])
    waits = {int(number) for number in re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)", ptx)}
    assert "wgmma.mma_async" in ptx
    assert waits == ({0, 1} if flies else {0})


def test_sums_that_a_loop_may_not_touch_are_zero_before_it() -> None:
    """Else ptxas lets each product wait for the one before, and says so."""
    boxes = {"a": "128x64", "b": "64x256", "c": "128x256"}
    types = {name: f"tensor<bf16, {box}>:16" for name, box in boxes.items()}
    constants = {
        "bias": None,
        "GROUP": 8,
        "TURNED": False,
        "FLIPPED": False,
        "MANY": False,
        "PRECISION": "ieee",
    }
    made = tile.compile(matmul, types, constants, target="sm_90a", num_warps=8, num_stages=4)
    assembled = assemble(str(made.asm["ptx"]), CHIPS["sm_90a"])
    assert assembled.warnings == ()


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize("many", [False, True])
def test_a_product_from_registers_has_enough_of_them_for_all_its_instructions(many: bool) -> None:
    """Else ptxas lets each wait for the one before, and says so."""
    types = {name: f"tensor<fp32, {box}>:16" for name, box in FLIPPED.items()}
    constants = {
        "bias": None,
        "GROUP": 4,
        "TURNED": False,
        "FLIPPED": True,
        "MANY": many,
        "PRECISION": "tf32",
    }
    made = tile.compile(matmul, types, constants, target="sm_90a", num_warps=8, num_stages=4)
    ptx = str(made.asm["ptx"])
    trip = re.findall(r"wgmma\.(\w+)", loop_of(ptx))
    assert trip == ["fence", *["mma_async"] * 4, "commit_group", "wait_group"]
    assembled = assemble(ptx, CHIPS["sm_90a"])
    assert assembled.warnings == ()
    assert assembled.resources["matmul"].spill_bytes == 0
