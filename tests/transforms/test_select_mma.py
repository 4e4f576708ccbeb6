"""Choice of instructions: shapes, types, warps, chains; and that products stay what they were."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

import tiledsl as language
from tiledsl.dialects import contracts, tile
from tiledsl.dialects.context import context
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_mma import wgmma, wmma_gfx11
from tiledsl.dialects.layout_shape import register_map
from tiledsl.dialects.types import tile_type
from tiledsl.transforms.assign_layouts import assign_layouts
from tiledsl.transforms.mma_table import Instruction, Table
from tiledsl.transforms.select_mma import select_mma, share_warps

from .layout_oracle import fault
from .mma_tables import AMPERE, CDNA, NONE
from .tile_kernels import Kernel, attention, matmul
from .tile_values import execute


def dot_kernel(
    shapes: tuple[int, ...], a: str = "f16", b: str = "f16", acc: str = "f32", **flags: object
) -> ir.Module:
    """Build one product of (batch, M, N, K)."""
    *batch, m, n, depth = shapes
    k = Kernel(f"*{a}", f"*{b}", f"*{acc}")

    def tile_of(pointer: ir.Value, rows: int, columns: int) -> ir.Value:
        flat = math.prod([*batch, rows, columns])
        return k.reshape(k.load(k.pointers(pointer, flat)), *batch, rows, columns)

    zero = k.constant(0, tile_type((*batch, m, n), k.type(acc)))
    result = k.dot(tile_of(k.args[0], m, depth), tile_of(k.args[1], depth, n), zero, **flags)
    flat = math.prod([*batch, m, n])
    k.store(k.pointers(k.args[2], flat), k.reshape(result, flat))
    return k.finish()


def select(module: ir.Module, table: Table[Instruction] = AMPERE, num_warps: int = 4) -> ir.Module:
    contracts.check(module, contracts.TILE)
    with module.context, ir.Location.unknown():
        select_mma(module, table=table, num_warps=num_warps)
    contracts.check(module, contracts.TILE)
    return module


def chosen(module: ir.Module) -> list[str]:
    """Give the instruction of each dot, "" for plain FMAs."""
    dots = [op for op in operations(module.operation) if isinstance(op, tile.DotOp)]
    names = [op.operation.attributes for op in dots]
    key = "tgpu.instruction"
    return [ir.StringAttr(a[key]).value if key in a else "" for a in names]


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        ((64, 64, 32), "m16n8k16.f16"),
        ((64, 64, 8), "m16n8k8.f16"),
        ((64, 64, 4), ""),
        ((8, 16, 16), "m16n8k16.f16.swapped"),
        ((8, 8, 16), ""),
        ((4, 64, 64), ""),
        ((16, 4, 64), ""),
        ((2, 16, 16, 16), "m16n8k16.f16"),
    ],
)
def test_the_first_instruction_that_fits_is_taken(shapes: tuple[int, ...], name: str):
    assert chosen(select(dot_kernel(shapes))) == [name]


def test_a_chip_without_instructions_multiplies_by_fmas():
    assert chosen(select(dot_kernel((64, 64, 64)), NONE)) == [""]


@pytest.mark.parametrize(
    ("a", "b", "acc", "name"),
    [
        ("f16", "f16", "f16", "m16n8k16.f16.f16"),
        ("bf16", "bf16", "f32", "m16n8k16.bf16"),
        ("f64", "f64", "f64", "m8n8k4.f64"),
        ("i8", "i8", "i32", "m16n8k32.i8"),
        ("f32", "f32", "f32", ""),
        ("f8E4M3FN", "f8E5M2", "f32", "m16n8k16.f16"),
        ("f8E4M3FN", "bf16", "f32", "m16n8k16.bf16"),
    ],
)
def test_types_that_no_instruction_takes_are_cast_to_ones_that_hold_them(
    a: str, b: str, acc: str, name: str
):
    assert chosen(select(dot_kernel((64, 64, 64), a, b, acc))) == [name]


def test_a_small_accumulator_is_widened_around_the_product():
    module = select(dot_kernel((64, 64, 64), "bf16", "bf16", "bf16"))
    assert chosen(module) == ["m16n8k16.bf16"]
    text = str(module)
    assert "arith.extf" in text or '"tile.cast"' in text
    (dot,) = (op for op in operations(module.operation) if isinstance(op, tile.DotOp))
    assert str(dot.result.type) == "tensor<64x64xf32>"


def test_unsigned_integers_need_an_instruction_for_them():
    flags = {"a_unsigned": True}
    assert chosen(select(dot_kernel((64, 64, 64), "i8", "i8", "i32", **flags))) == ["m16n8k32.i8"]
    assert chosen(select(dot_kernel((64, 64, 64), "i8", "i8", "i32", **flags), CDNA)) == [""]


def test_f32_multiplies_in_tf32_only_where_asked():
    f32 = ("f32", "f32", "f32")
    assert chosen(select(dot_kernel((64, 64, 64), *f32, precision="ieee"))) == [""]
    assert chosen(select(dot_kernel((64, 64, 64), *f32, precision="tf32"))) == ["m16n8k8.tf32"]
    # Without tf32 the exact product is as good.
    exact = select(dot_kernel((64, 64, 64), *f32, precision="tf32"), CDNA, 1)
    assert chosen(exact) == ["16x16x4.f32"]


def test_tf32x3_is_three_products():
    module = select(dot_kernel((64, 64, 64), "f32", "f32", "f32", precision="tf32x3"))
    assert chosen(module) == ["m16n8k8.tf32"] * 3


def test_the_parts_of_tf32x3_give_back_the_product_also_of_infinities():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(256).astype(np.float32) for _ in range(2))
    a[0], b[5] = np.inf, -np.inf
    wanted = a.reshape(16, 16) @ b.reshape(16, 16)
    module = select(dot_kernel((16, 16, 16), "f32", "f32", "f32", precision="tf32x3"))
    found = execute(module, [a, b, np.zeros(256, np.float32)])[2].reshape(16, 16)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_without_tf32_three_products_are_one():
    module = select(dot_kernel((64, 64, 64), "f32", "f32", "f32", precision="tf32x3"), CDNA, 1)
    assert chosen(module) == ["16x16x4.f32"]


def test_every_warp_gets_something_of_its_own_where_a_smaller_instruction_allows():
    assert chosen(select(dot_kernel((64, 64, 64)), CDNA, 4)) == ["32x32x8.f16.wide"]
    assert chosen(select(dot_kernel((32, 32, 64)), CDNA, 4)) == ["16x16x16.f16"]
    assert chosen(select(dot_kernel((32, 32, 64)), CDNA, 1)) == ["32x32x8.f16.wide"]


@pytest.mark.parametrize("table", [AMPERE, CDNA])
@pytest.mark.parametrize("num_warps", [1, 2, 4])
def test_a_products_result_is_the_next_ones_operand_as_it_lies(
    table: Table[Instruction], num_warps: int
):
    module = select(attention(64, 64, 64), table, num_warps)
    first, second = (op for op in operations(module.operation) if isinstance(op, tile.DotOp))
    acc = LinearLayout.parse(texts(first)[2])
    a = LinearLayout.parse(texts(second)[0])
    assert register_map(acc, a) is not None


def texts(op: tile.DotOp) -> list[str]:
    return [ir.StringAttr(t).value for t in ir.ArrayAttr(op.operation.attributes["tgpu.layouts"])]


def test_where_no_result_is_an_operand_as_it_lies_rows_stay_in_their_lanes():
    gfx11 = Table([Instruction("wmma", "f16", "f16", "f32", wmma_gfx11())])
    assert chosen(select(attention(64, 64, 64), gfx11)) == ["wmma.swapped"] * 2
    assert chosen(select(matmul(64, 64, 64), gfx11)) == ["wmma"]


@pytest.mark.parametrize(
    ("m", "n", "warps", "shared"),
    [
        (128, 128, 4, (2, 2)),
        (128, 64, 8, (4, 2)),
        (16, 256, 4, (1, 4)),
        (256, 16, 4, (4, 1)),
        (16, 8, 4, (4, 1)),
    ],
)
def test_warps_share_a_tile_in_square_pieces(m: int, n: int, warps: int, shared: tuple[int, int]):
    instruction = AMPERE.instructions[0]
    assert share_warps(m, n, instruction, warps, chained=False) == shared


def test_warps_of_a_chain_share_rows_as_long_as_there_are_rows():
    instruction = AMPERE.instructions[0]
    assert share_warps(64, 128, instruction, 4, chained=True) == (4, 1)
    assert share_warps(32, 128, instruction, 4, chained=True) == (2, 2)


def test_a_warpgroup_instruction_keeps_its_warps_together():
    instruction = Instruction("wgmma", "f16", "f16", "f32", wgmma(64, 16, 16))
    assert share_warps(64, 128, instruction, 8, chained=False) == (4, 2)
    assert share_warps(128, 64, instruction, 8, chained=False) == (8, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.sampled_from([1, 2, 4, 8, 16, 32, 64])] * 3),
    st.sampled_from([(), (2,), (4,)]),
    st.sampled_from(
        [("f16", "f32", AMPERE, 32), ("i8", "i32", CDNA, 64), ("f32", "f32", NONE, 32)]
    ),
    st.sampled_from([1, 2, 4, 8]),
)
def test_every_shape_is_multiplied_right(
    shape: tuple[int, ...],
    batch: tuple[int, ...],
    kind: tuple[str, str, Table[Instruction], int],
    num_warps: int,
):
    element, acc, table, lanes = kind
    m, n, depth = shape
    module = select(dot_kernel((*batch, *shape), element, element, acc), table, num_warps)
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=num_warps, warp_size=lanes)
    contracts.check(module, contracts.TGPU)
    assert fault(module) is None
    types = {"f16": np.float16, "i8": np.int8, "f32": np.float32, "i32": np.int32}
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (*batch, m, depth)).astype(types[element])
    b = rng.integers(-3, 4, (*batch, depth, n)).astype(types[element])
    c = np.zeros(math.prod((*batch, m, n)), types[acc])
    found = execute(module, [a.ravel(), b.ravel(), c])[2].reshape(*batch, m, n)
    np.testing.assert_array_equal(found, a.astype(types[acc]) @ b.astype(types[acc]))


def test_the_choice_is_the_same_for_a_kernel_read_back_from_text():
    module = select(matmul())
    again = ir.Module.parse(str(module), module.context)
    for one in (module, again):
        with one.context, ir.Location.unknown():
            assign_layouts(one, num_warps=4, warp_size=32)
    assert str(module) == str(again)


def test_a_table_finds_its_entries_by_the_names_that_dots_carry():
    for entry, swapped in product(AMPERE.instructions, (False, True)):
        name = entry.name + ".swapped" * swapped
        assert AMPERE.entry(name) is entry
        assert AMPERE.fragments(name).swapped == swapped


def test_two_entries_of_one_name_are_refused():
    entry = AMPERE.instructions[0]
    with pytest.raises(ValueError, match="a name of its own"):
        Table((entry, entry)).entry(entry.name)


@language.jit
def boxes(a, b, c, N, CASE: language.constexpr):
    across = language.make_tensor_descriptor(a, [N, N], [N, 1], [32, 128])
    along = language.make_tensor_descriptor(a, [N, N], [N, 1], [128, 32])
    right = language.make_tensor_descriptor(b, [N, N], [N, 1], [32, 64])
    out = language.make_tensor_descriptor(c, [N, N], [N, 1], [128, 64])
    acc = language.zeros((128, 64), language.float32)
    if CASE == "once":
        acc = language.dot(language.trans(across.load([0, 0])), right.load([0, 0]), acc, "tf32")
    for k in range(0, N, 32):
        x = along.load([0, k]) if CASE == "along" else language.trans(across.load([k, 0]))
        y = right.load([k, 0])
        if CASE == "chained":
            weights = language.dot(x, y, input_precision="tf32").to(language.float16)
            acc = language.dot(weights, language.zeros((64, 64), language.float16), acc)
        elif CASE != "once":
            acc = language.dot(x, y, acc, input_precision="tf32")
        if CASE == "joined":
            acc = language.dot(along.load([0, k]), y, acc * 2, input_precision="tf32")
    out.store([0, 0], acc)


@pytest.mark.parametrize(
    ("case", "chip", "spread"),
    [
        ("across", "sm_90a", [True]),
        ("along", "sm_90a", [False]),
        # What one read gains the result, once stored, loses.
        ("once", "sm_90a", [False]),
        # Sums would change places in every trip.
        ("joined", "sm_90a", [False, False]),
        # What is another product's operand as it lies is to stay so.
        ("chained", "sm_90a", [False, False]),
        # Without TMA, to be read by pointers; and `mma.sync` has 16 rows.
        ("across", "sm_80", [False]),
    ],
)
def test_rows_are_spread_where_a_loop_reads_boxes_across_for_it_alone(
    case: str, chip: str, spread: list[bool]
):
    types = dict.fromkeys("abc", "*fp32:16") | {"N": "i32:16"}
    made = language.compile(boxes, types, {"CASE": case}, target=chip, num_warps=8)
    with context():
        module = ir.Module.parse(dict(made.stages)["select_mma"])
        dots = [op for op in operations(module.operation) if isinstance(op, tile.DotOp)]
        found = [LinearLayout.parse(texts(dot)[2]) for dot in dots]
    assert [(16, 0) in one.bases["lane"] for one in found] == spread
    assert all(name.startswith("wgmma") == (chip == "sm_90a") for name in chosen(module))
