"""Cutting vectors changes no result, leaves none long, and puts work where it is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.targets.gpu.running import run, to_machine
from tests.targets.gpu.thread_interpreter import Global, Threads
from tests.transforms.tile_kernels import Kernel, matmul, softmax
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import MACHINE, check, operations
from tiledsl.dialects.types import tile_type
from tiledsl.targets.gpu.split_registers import split_registers

SHORT = ("arith.", "math.", "vector.broadcast", "vector.from_elements")
"""Shuffles also join the pieces of what a loop carries or an access takes whole."""


def split(module: ir.Module, width: int) -> ir.Module:
    with module.context, ir.Location.unknown():
        split_registers(module, width=width)
    check(module, MACHINE)
    return module


def long_results(module: ir.Module, width: int) -> Iterator[str]:
    """Give the ops that should have been cut and were not."""
    for op in operations(module.operation):
        if op.operation.name.startswith(SHORT):
            for result in op.operation.results:
                if isinstance(result.type, ir.VectorType) and result.type.shape[0] > width:
                    yield str(op)


def mixed() -> ir.Module:
    """Build a kernel of every kind of op on vectors: elementwise, shapes, widths, a loop."""
    k = Kernel("*i32", "*i16", "i32")
    x = k.load(k.pointers(k.args[0], 64, 32))
    y = k.op("arith.xori", k.op("arith.addi", x, x), k.broadcast(k.expand(k.range(64), 1), 64, 32))
    first, second = k.split(k.reshape(k.trans(y, 1, 0), 32, 32, 2))
    z = k.cat(first, k.op("arith.muli", second, first), 0)

    def body(i: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        return [k.op("arith.addi", k.op("arith.subi", carried[0], z), k.splat(i, 64, 32))]

    (z,) = k.loop(k.args[2], [z], body)
    narrow = k.op("arith.trunci", z, result=tile_type((64, 32), k.type("i16")))
    k.store(k.pointers(k.args[1], 64, 32), narrow)
    return k.finish()


@pytest.mark.parametrize("width", [1, 2, 8, 32])
@pytest.mark.parametrize("warps", [1, 4])
def test_results_stay_the_same(warps: int, width: int) -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, (64, 32)).astype(np.int32)
    whole, cut = np.zeros((64, 32), np.int16), np.zeros((64, 32), np.int16)
    run(to_machine(mixed(), warps), x, whole, 3)
    module = split(to_machine(mixed(), warps), width)
    assert list(long_results(module, width)) == []
    run(module, x, cut, 3)
    np.testing.assert_array_equal(cut, whole)
    assert whole.any()


def test_products_and_reductions_stay_the_same() -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (32, 64)).astype(np.float16) for _ in range(2))
    c = np.zeros((32, 64), np.float16)
    run(split(to_machine(matmul(32, 32, 16)), 4), a, b.reshape(64, 32), c, 2, 64, 32)
    product = a[:, :32].astype(float) @ b.reshape(64, 32)[:32].astype(float)
    np.testing.assert_array_equal(c.reshape(64, 32)[:32], product)
    x = random.standard_normal((4, 256)).astype(np.float32)
    y = np.zeros_like(x)
    run(split(to_machine(softmax()), 2), x, y, 256)
    e = np.exp(x)
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


@given(
    sizes=st.sampled_from([(16, 16), (8, 32), (32, 4)]),
    width=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 999),
)
@settings(max_examples=25, deadline=None)
def test_any_shuffle_takes_registers_from_any_piece(
    sizes: tuple[int, int], width: int, seed: int
) -> None:
    held, made = sizes
    random = np.random.default_rng(seed)
    picks = [int(i) for i in random.integers(0, 2 * held, made)]
    text = f"""
    llvm.func @kernel(%p: !llvm.ptr<1>, %q: !llvm.ptr<1>) attributes {{
        tile.kinds = ["ptr", "ptr"], tile.threads = 1 : i64, tile.shared_bytes = 0 : i64}} {{
      %a = llvm.load %p : !llvm.ptr<1> -> vector<{held}xi16>
      %b = llvm.getelementptr %p[{held}] : (!llvm.ptr<1>) -> !llvm.ptr<1>, i16
      %c = llvm.load %b : !llvm.ptr<1> -> vector<{held}xi16>
      %d = vector.shuffle %a, %c {picks} : vector<{held}xi16>, vector<{held}xi16>
      %e = arith.addi %d, %d : vector<{made}xi16>
      llvm.store %e, %q : vector<{made}xi16>, !llvm.ptr<1>
      llvm.return
    }}"""
    module = split(parse(text), width)
    x, y = np.arange(2 * held, dtype=np.int16), np.zeros(made, np.int16)
    memory = Global()
    Threads(module, memory).run(memory.add(x), memory.add(y))
    memory.copy_back()
    np.testing.assert_array_equal(y, 2 * x[picks])


def test_each_piece_is_computed_just_before_its_store() -> None:
    k = Kernel("*f32", "*f32")
    x = k.load(k.pointers(k.args[0], 4096))
    k.store(k.pointers(k.args[1], 4096), k.op("arith.mulf", x, x))
    text = str(split(to_machine(k.finish(), 4, "sm_80"), 4))
    kinds = re.findall(r"llvm\.load|arith\.mulf|llvm\.store", text)
    assert kinds == ["llvm.load"] * 8 + ["arith.mulf", "llvm.store"] * 8


def test_what_nothing_needs_is_gone() -> None:
    module = parse("""
    llvm.func @kernel(%p: !llvm.ptr<1>) {
      %a = llvm.load %p : !llvm.ptr<1> -> vector<4xi32>
      %b = arith.addi %a, %a : vector<4xi32>
      %c = llvm.getelementptr %p[1] : (!llvm.ptr<1>) -> !llvm.ptr<1>, i32
      llvm.store %a, %p : vector<4xi32>, !llvm.ptr<1>
      llvm.return
    }""")
    text = str(split(module, 8))
    assert "addi" not in text
    assert "getelementptr" not in text


def test_what_keeps_its_order_is_not_moved_and_what_it_needs_is_moved_to_it() -> None:
    module = parse("""
      llvm.func @kernel(%p: !llvm.ptr<3>, %q: !llvm.ptr<3>) {
        %a = llvm.load %p : !llvm.ptr<3> -> vector<4xf32>
        %b = llvm.load %q : !llvm.ptr<3> -> vector<4xf32>
        %x = math.fma %a, %a, %a {tgpu.in_order} : vector<4xf32>
        %y = math.fma %b, %b, %b {tgpu.in_order} : vector<4xf32>
        llvm.store %y, %p : vector<4xf32>, !llvm.ptr<3>
        llvm.store %x, %q : vector<4xf32>, !llvm.ptr<3>
        llvm.return
      }
    """)
    names = [op.operation.name for op in operations(split(module, 8).operation)]
    assert names[-7:] == [
        *("llvm.load", "math.fma", "llvm.load", "math.fma"),
        *("llvm.store", "llvm.store", "llvm.return"),
    ]


def test_functions_move_to_their_users_but_not_past_products_in_flight_nor_loops() -> None:
    module = parse("""
      llvm.func @kernel(%p: !llvm.ptr<1>, %x: f32, %y: f32, %z: f32, %lanes: vector<2xf32>) {
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %a = llvm.call_intrinsic "llvm.nvvm.ex2.approx.ftz.f"(%x) : (f32) -> f32
        %w = "ptx.wgmma_wait"(%lanes) {pending = 0 : i64} : (vector<2xf32>) -> vector<2xf32>
        %b = llvm.call_intrinsic "llvm.nvvm.ex2.approx.ftz.f"(%y) : (f32) -> f32
        scf.for %i = %c0 to %c1 step %c1 : i32 {
          llvm.store %x, %p : f32, !llvm.ptr<1>
        }
        %c = llvm.call_intrinsic "llvm.nvvm.ex2.approx.ftz.f"(%z) : (f32) -> f32
        llvm.store %a, %p : f32, !llvm.ptr<1>
        llvm.store %c, %p : f32, !llvm.ptr<1>
        llvm.store %b, %p : f32, !llvm.ptr<1>
        llvm.store %w, %p : vector<2xf32>, !llvm.ptr<1>
        llvm.return
      }
    """)
    text = str(split(module, 8))
    kinds = re.findall(r"ex2|wgmma_wait|scf\.for|llvm\.store", text)
    assert kinds == [
        *("ex2", "wgmma_wait", "ex2", "scf.for", "llvm.store", "llvm.store"),
        *("ex2", "llvm.store", "llvm.store", "llvm.store"),
    ]


def moved(pieces: str, load: str) -> list[str]:
    """Copy two numbers, loaded as `load` says, in a kernel with such attributes; give the order."""
    text = f"""
    llvm.func @kernel(%q: !llvm.ptr<1>, %p: !llvm.ptr<1>) attributes {{
        {pieces} tile.kinds = ["ptr", "ptr"], tile.threads = 1 : i64, tile.shared_bytes = 16 : i64}} {{
      %s = llvm.mlir.zero : !llvm.ptr<3>
      %a = llvm.load {load} -> f32
      %b = llvm.load {load} -> f32
      llvm.store %a, %q : f32, !llvm.ptr<1>
      llvm.store %b, %q : f32, !llvm.ptr<1>
      llvm.return
    }}"""
    return re.findall(r"llvm\.(load|store)", str(split(parse(text), 8)))


@pytest.mark.parametrize(
    ("pieces", "load", "by_pieces"),
    [
        ("tgpu.pieces = 2 : i64,", "%s : !llvm.ptr<3>", True),
        ("", "%s : !llvm.ptr<3>", False),
        ("", "%p {tgpu.late} : !llvm.ptr<1>", True),
        ("tgpu.pieces = 2 : i64,", "%p : !llvm.ptr<1>", False),
    ],
)
def test_who_may_load_late_loads_for_each_store(pieces: str, load: str, by_pieces: bool) -> None:
    wanted = ["load", "store"] * 2 if by_pieces else ["load", "load", "store", "store"]
    assert moved(pieces, load) == wanted


def test_a_kernel_may_say_how_long_pieces_are() -> None:
    k = Kernel("*f32", "*f32")
    x = k.load(k.pointers(k.args[0], 4096))
    k.store(k.pointers(k.args[1], 4096), k.op("arith.mulf", x, x))
    module = to_machine(k.finish(), 4, "sm_80")
    with module.context:
        (kernel,) = (op for op in module.body.operations if op.operation.name == "llvm.func")
        kernel.operation.attributes["tgpu.pieces"] = ir.Attribute.parse("2 : i64")
    assert list(long_results(split(module, 8), 2)) == []
