"""Pipelined loops compute and read what the loops did, for any trips, and race nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.transforms.golden import golden
from tests.transforms.shared_memory_model import SharedMemory
from tests.transforms.tile_interpreter import Machine, Memory
from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import TGPU
from tiledsl.transforms.assign_layouts import assign_layouts
from tiledsl.transforms.insert_barriers import insert_barriers
from tiledsl.transforms.pipeline_loops import pipeline_loops

Copy = Literal["cp.async", "registers"]
Array = np.ndarray[Any, Any]
N = 8
"""Rows and columns of every tile."""


@dataclass(frozen=True)
class Shape:
    """What a generated kernel does in its loop.

    Attributes:
        address: How the first load's address comes about: from the loop's "variable", a "carried"
            pointer, or a "table" that is read in each trip.
        mask: Whether the first load is masked by a bound.
        other: What masked lanes give: None, 0 or 1.
        store: Where each trip stores: "" for nowhere, "c" to another argument, "a" to the one that
            is loaded from.
        branch: Whether the product is made in odd trips alone.
        keep: Whether the tile itself is carried to the next trip.
        nested: Whether the loop stands in another one.
        product: Whether there is a matrix product; else tiles are added up.
        lower: The lower bound.
        step: The step; 0 for the argument's value.
        stages: An attribute of the loop itself, if not 0.
        element: Of the loaded tiles.
    """

    address: str = "variable"
    mask: bool = False
    other: int | None = None
    store: str = ""
    branch: bool = False
    keep: bool = False
    nested: bool = False
    product: bool = True
    lower: int = 0
    step: int = 1
    stages: int = 0
    element: str = "f32"

    def text(self) -> str:
        """Return the kernel's IR at the `tile` level."""
        body = f"scf.for %o = %zero to %two step %one : i32 {{\n{self._loop()}\n}}"
        loop = body if self.nested else self._loop()
        e = self.element
        return f"""func.func @k(%a: !tile.ptr<{e}> {ALIGNED}, %b: !tile.ptr<{e}> {ALIGNED},
            %c: !tile.ptr<f32> {ALIGNED}, %t: !tile.ptr<i32>, %n: i32, %s: i32) {{
        %zero = arith.constant 0 : i32
        %one = arith.constant 1 : i32
        %two = arith.constant 2 : i32
        %lower = arith.constant {self.lower} : i32
        {"" if self.step == 0 else f"%step = arith.constant {self.step} : i32"}
        %size = arith.constant {N * N} : i32
        %sizes = arith.constant dense<{N * N}> : tensor<{T}xi32>
        %none = arith.constant dense<0.0> : tensor<{T}xf32>
        %kept0 = arith.constant dense<0.0> : tensor<{T}x{e}>
        %fill = arith.constant dense<{self.other or 0}.0> : tensor<{T}x{e}>
        %r = "tile.make_range"() {{start = 0, end = {N}}} : () -> tensor<{N}xi32>
        %row = "tile.expand_dims"(%r) {{axis = 1}} : (tensor<{N}xi32>) -> tensor<{N}x1xi32>
        %col = "tile.expand_dims"(%r) {{axis = 0}} : (tensor<{N}xi32>) -> tensor<1x{N}xi32>
        %width = arith.constant dense<{N}> : tensor<{N}x1xi32>
        %rows = arith.muli %row, %width : tensor<{N}x1xi32>
        %rowb = "tile.broadcast"(%rows) : (tensor<{N}x1xi32>) -> tensor<{T}xi32>
        %colb = "tile.broadcast"(%col) : (tensor<1x{N}xi32>) -> tensor<{T}xi32>
        %offs = arith.addi %rowb, %colb : tensor<{T}xi32>
        {pointers("%a", "as", e)}
        {pointers("%b", "bs", e)}
        {pointers("%c", "cs", "f32")}
        {loop}
        return
        }}""".replace("%step", "%s" if self.step == 0 else "%step")

    def _loop(self) -> str:
        e = self.element
        ptrs = f"tensor<{T}x!tile.ptr<{e}>>"
        types = f"tensor<{T}xf32>, tensor<{T}x{e}>, {ptrs}"
        stages = f"{{tile.num_stages = {self.stages} : i64}}" if self.stages else ""
        return f"""%res:3 = scf.for %i = %lower to %n step %step
          iter_args(%acc = %none, %kept = %kept0, %q = %as) -> ({types}) : i32 {{
          {self._addresses()}
          {self._first_load()}
          %ib = arith.muli %i, %size : i32
          {moved("%bs", "%ib", "bp", e)}
          %y = "tile.load"(%bp) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : ({ptrs}) -> tensor<{T}x{e}>
          {self._compute()}
          {self._store()}
          %qn = "tile.addptr"(%q, %sizes) : ({ptrs}, tensor<{T}xi32>) -> {ptrs}
          scf.yield %next, {"%x" if self.keep else "%kept"}, %qn : {types}
        }} {stages}
        "tile.store"(%cs, %res#0) : (tensor<{T}x!tile.ptr<f32>>, tensor<{T}xf32>) -> ()
        {moved("%cs", "%size", "ks", "f32")}
        {widened("%res#1", "keptf", e)}
        "tile.store"(%ks, %keptf) : (tensor<{T}x!tile.ptr<f32>>, tensor<{T}xf32>) -> ()"""

    def _addresses(self) -> str:
        if self.address == "carried":
            return ""
        at = "%i"
        lines = ""
        if self.address == "table":
            at = "%j"
            lines = """%tp = "tile.addptr"(%t, %i) : (!tile.ptr<i32>, i32) -> !tile.ptr<i32>
          %j = "tile.load"(%tp) {operandSegmentSizes = array<i32: 1, 0, 0>} : (!tile.ptr<i32>) -> i32"""
        return f"""{lines}
          %ia = arith.muli {at}, %size : i32
          {moved("%as", "%ia", "ap", self.element)}"""

    def _first_load(self) -> str:
        ptr = "%q" if self.address == "carried" else "%ap"
        e = self.element
        operands, sizes = [(ptr, f"tensor<{T}x!tile.ptr<{e}>>")], "1, 0, 0"
        lines = ""
        if self.mask:
            lines = f"""%il = "tile.splat"(%i) : (i32) -> tensor<{T}xi32>
          %at = arith.addi %il, %offs : tensor<{T}xi32>
          %bound = arith.constant dense<{N * N // 2}> : tensor<{T}xi32>
          %m = arith.cmpi slt, %at, %bound : tensor<{T}xi32>"""
            operands.append(("%m", f"tensor<{T}xi1>"))
            sizes = "1, 1, 0"
            if self.other is not None:
                operands.append(("%fill", f"tensor<{T}x{e}>"))
                sizes = "1, 1, 1"
        values, types = (", ".join(part) for part in zip(*operands, strict=True))
        segments = f"{{operandSegmentSizes = array<i32: {sizes}>}}"
        return f"""{lines}
          %x = "tile.load"({values}) {segments} : ({types}) -> tensor<{T}x{e}>"""

    def _compute(self) -> str:
        e = self.element
        dot = f"(tensor<{T}x{e}>, tensor<{T}x{e}>, tensor<{T}xf32>) -> tensor<{T}xf32>"
        made = f'%made = "tile.dot"(%x, %y, %acc) : {dot}'
        if not self.product:
            made = f"""{widened("%x", "xf", e)}
          {widened("%y", "yf", e)}
          %xy = arith.subf %xf, %yf : tensor<{T}xf32>
          %made = arith.addf %acc, %xy : tensor<{T}xf32>"""
        if self.branch:
            made = f"""%bit = arith.andi %i, %one : i32
          %odd = arith.cmpi eq, %bit, %one : i32
          %made = scf.if %odd -> (tensor<{T}xf32>) {{
            {made.replace("%made", "%inner")}
            scf.yield %inner : tensor<{T}xf32>
          }} else {{
            scf.yield %acc : tensor<{T}xf32>
          }}"""
        return f"""{made}
          {widened("%kept", "keep", e)}
          %next = arith.addf %made, %keep : tensor<{T}xf32>"""

    def _store(self) -> str:
        if self.store == "c":
            return f"""%io = arith.muli %i, %size : i32
          %io2 = arith.addi %io, %size : i32
          %io3 = arith.addi %io2, %size : i32
          {moved("%cs", "%io3", "cp", "f32")}
          "tile.store"(%cp, %next) : (tensor<{T}x!tile.ptr<f32>>, tensor<{T}xf32>) -> ()"""
        if self.store == "a":
            e = self.element
            return f"""%in = arith.addi %i, %one : i32
          %io = arith.muli %in, %size : i32
          {moved("%as", "%io", "sp", e)}
          "tile.store"(%sp, %x) : (tensor<{T}x!tile.ptr<{e}>>, tensor<{T}x{e}>) -> ()"""
        return ""


ALIGNED = "{tile.divisibility = 16 : i64}"
T = f"{N}x{N}"


def pointers(base: str, name: str, element: str) -> str:
    ptrs = f"tensor<{T}x!tile.ptr<{element}>>"
    return f"""%{name}0 = "tile.splat"({base}) : (!tile.ptr<{element}>) -> {ptrs}
        %{name} = "tile.addptr"(%{name}0, %offs) : ({ptrs}, tensor<{T}xi32>) -> {ptrs}"""


def moved(tile: str, by: str, name: str, element: str) -> str:
    ptrs = f"tensor<{T}x!tile.ptr<{element}>>"
    return f"""%{name}s = "tile.splat"({by}) : (i32) -> tensor<{T}xi32>
          %{name} = "tile.addptr"({tile}, %{name}s) : ({ptrs}, tensor<{T}xi32>) -> {ptrs}"""


def widened(value: str, name: str, element: str) -> str:
    if element == "f32":
        return f"%{name} = arith.addf {value}, %none : tensor<{T}xf32>"
    return f"%{name} = arith.extf {value} : tensor<{T}x{element}> to tensor<{T}xf32>"


def laid_out(shape: Shape) -> ir.Module:
    module = parse(shape.text())
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=2, warp_size=32)
    contracts.check(module, TGPU)
    return module


def pipelined(shape: Shape, stages: int, copy: Copy) -> ir.Module:
    module = laid_out(shape)
    with module.context, ir.Location.unknown():
        pipeline_loops(module, stages=stages, copy=copy)
        contracts.check(module, TGPU)
        insert_barriers(module)
    return module


def run(module: ir.Module, shape: Shape, trips: int) -> tuple[list[Array], list[tuple[int, int]]]:
    """Run a kernel so that its loop has `trips`; return the arrays and what was read."""
    step = shape.step or 3
    upper = shape.lower + trips * step - (step - 1 if trips else 0)
    last = shape.lower + max(0, trips - 1) * step
    rng = np.random.default_rng(trips)
    dtype = np.dtype({"f32": "f4", "f16": "f2"}.get(shape.element, "f4"))
    # As large as what is read: an access of a trip that does not exist is out of bounds.
    size = N * N * (last + 1 + (shape.store == "a")) if trips else 0
    a, b = (rng.integers(-2, 3, size).astype(dtype) for _ in range(2))
    table = rng.integers(0, max(1, last + 1), last + 1 if trips else 0).astype(np.int32)
    c = np.full(N * N * (last + 4), np.nan, np.float32)
    memory = Memory([a, b, c, table])
    machine = Machine(memory, shared=SharedMemory(barriers=True))
    numbers = [np.array(upper, np.int32), np.array(step, np.int32)]
    machine.run(module, *(memory.pointer(i) for i in range(4)), *numbers)
    return memory.arrays, sorted(memory.reads)


def check(shape: Shape, stages: int, copy: Copy, trips: int) -> str:
    """Compare a pipelined kernel with the plain one; return its IR."""
    expected, reads = run(laid_out(shape), shape, trips)
    module = pipelined(shape, stages, copy)
    found, read = run(module, shape, trips)
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_array_equal(x, y)
    assert read == reads
    return str(module)


COPIES: list[Copy] = ["cp.async", "registers"]


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("stages", range(1, 6))
@pytest.mark.parametrize("address", ["variable", "carried"])
def test_any_number_of_trips_is_right(copy: Copy, stages: int, address: str):
    shape = Shape(address=address)
    module = pipelined(shape, stages, copy)
    for trips in range(7):
        expected, reads = run(laid_out(shape), shape, trips)
        found, read = run(module, shape, trips)
        np.testing.assert_array_equal(expected[2], found[2])
        assert read == reads


shapes = st.builds(
    Shape,
    address=st.sampled_from(["variable", "carried", "table"]),
    mask=st.booleans(),
    other=st.sampled_from([None, 0, 1]),
    store=st.sampled_from(["", "", "c", "a"]),
    branch=st.booleans(),
    keep=st.booleans(),
    nested=st.booleans(),
    product=st.booleans(),
    lower=st.sampled_from([0, 2]),
    step=st.sampled_from([1, 2, 3, 0]),
    stages=st.sampled_from([0, 0, 2, 4]),
    element=st.sampled_from(["f32", "f16"]),
)


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(1, 5), st.sampled_from(COPIES), st.integers(0, 5))
def test_any_loop_computes_and_reads_what_it_did(shape: Shape, stages: int, copy: Copy, trips: int):
    check(shape, stages, copy, trips)


def body_of(text: str) -> str:
    """Return the text of the first loop's body."""
    start = text.index("scf.for")
    return text[start : text.index("scf.yield", start)]


def test_copies_go_around_as_many_slots_as_stages():
    golden(
        str(laid_out(Shape())),
        lambda module: pipeline_loops(module, stages=3, copy="cp.async"),
        TGPU,
        """
    // CHECK: "tgpu.alloc"() : () -> !tgpu.shared<tensor<3x8x8xf32
    // CHECK: "tgpu.async_copy"
    // CHECK: "tgpu.async_commit"
    // CHECK: "tgpu.async_copy"
    // CHECK: "tgpu.async_commit"
    // CHECK: scf.for
    // CHECK-NEXT: "tgpu.async_wait"() {pending = 1
    // CHECK: "tgpu.async_copy"
    // CHECK: "tgpu.async_copy"
    // CHECK: "tgpu.async_commit"
    // CHECK-NOT: "tile.load"
    // CHECK: "tgpu.local_load"
    // CHECK: "tgpu.local_load"
    // CHECK: "tgpu.fma_dot"
    // CHECK: scf.yield
    // CHECK: "tgpu.async_wait"() {pending = 0
    """,
    )


def test_registers_are_loaded_before_the_arithmetic_and_stored_after_it():
    golden(
        str(laid_out(Shape())),
        lambda module: pipeline_loops(module, stages=2, copy="registers"),
        TGPU,
        """
    // CHECK: "tgpu.alloc"() : () -> !tgpu.shared<tensor<1x8x8xf32
    // CHECK: "tile.load"
    // CHECK: "tile.load"
    // CHECK: "tgpu.local_store"
    // CHECK: "tgpu.local_store"
    // CHECK: scf.for
    // CHECK: "tile.load"
    // CHECK: "tile.load"
    // CHECK: "tgpu.local_load"
    // CHECK: "tgpu.local_load"
    // CHECK: "tgpu.fma_dot"
    // CHECK: "tgpu.local_store"
    // CHECK: "tgpu.local_store"
    // CHECK: scf.yield
    """,
    )


@pytest.mark.parametrize(("copy", "barriers"), [("cp.async", 1), ("registers", 2)])
def test_a_trip_has_no_more_barriers_than_its_slots_need(copy: Copy, barriers: int):
    assert body_of(str(pipelined(Shape(), 3, copy))).count("tgpu.barrier") == barriers


@pytest.mark.parametrize(
    ("shape", "stages"),
    [
        (Shape(), 1),
        (Shape(product=False), 3),
        (Shape(stages=1), 3),
    ],
)
def test_a_loop_without_stages_or_product_stays(shape: Shape, stages: int):
    before = str(laid_out(shape))
    module = laid_out(shape)
    with module.context, ir.Location.unknown():
        pipeline_loops(module, stages=stages, copy="cp.async")
    assert str(module) == before


def test_stages_on_a_loop_pipeline_all_its_loads():
    text = str(pipelined(Shape(product=False, stages=3), 1, "cp.async"))
    assert body_of(text).count("tgpu.async_copy") == 2
    assert "tile.num_stages" not in text


@pytest.mark.parametrize(("room", "slots"), [(4096, 4), (1600, 3), (1024, 2), (1000, 0)])
def test_copies_that_no_product_reads_run_as_far_ahead_as_there_is_room(room: int, slots: int):
    module = laid_out(Shape(product=False, stages=4))  # two tiles of 256 bytes a trip
    with module.context, ir.Location.unknown():
        pipeline_loops(module, stages=1, copy="cp.async", shared_bytes=room)
    assert (f"tensor<{slots}x8x8xf32" in str(module)) == bool(slots)
    assert ("tgpu.async_copy" in str(module)) == bool(slots)


LONG = """func.func @k(%a: !tile.ptr<f16> {tile.divisibility = 16 : i64}, %n: i32) {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %none = arith.constant dense<0.0> : tensor<SIZExf16>
  %r = "tile.make_range"() {start = 0, end = SIZE} : () -> tensor<SIZExi32>
  %p = "tile.splat"(%a) : (!tile.ptr<f16>) -> tensor<SIZEx!tile.ptr<f16>>
  %ps = "tile.addptr"(%p, %r) : (tensor<SIZEx!tile.ptr<f16>>, tensor<SIZExi32>)
    -> tensor<SIZEx!tile.ptr<f16>>
  %sum = scf.for %i = %zero to %n step %one iter_args(%acc = %none) -> (tensor<SIZExf16>) : i32 {
    %x = "tile.load"(%ps) {operandSegmentSizes = array<i32: 1, 0, 0>}
      : (tensor<SIZEx!tile.ptr<f16>>) -> tensor<SIZExf16>
    %y = arith.addf %x, %acc : tensor<SIZExf16>
    scf.yield %y : tensor<SIZExf16>
  } {tile.num_stages = 2 : i64}
  "tile.store"(%ps, %sum) : (tensor<SIZEx!tile.ptr<f16>>, tensor<SIZExf16>) -> ()
  return
}"""


@pytest.mark.parametrize(("elements", "copies"), [(16, 0), (32, 1)])
def test_little_of_the_next_trip_is_held_in_registers_and_much_is_copied(
    elements: int, copies: int
):
    module = parse(LONG.replace("SIZE", str(64 * elements)))
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=2, warp_size=32)
        pipeline_loops(module, stages=1, copy="cp.async")
    assert body_of(str(module)).count("tgpu.async_copy") == copies
    assert body_of(str(module)).count('"tile.load"') == 1 - copies


def test_a_load_of_what_the_loop_stores_stays_in_its_trip():
    text = check(Shape(store="a"), 3, "cp.async", 4)
    body = body_of(text)
    assert body.count("tile.load") == 1
    assert body.count("tgpu.async_copy") == 1


def test_a_store_through_another_argument_does_not_hold_loads_back():
    assert body_of(check(Shape(store="c"), 3, "cp.async", 4)).count("tgpu.async_copy") == 2


def test_another_fill_value_goes_through_registers():
    body = body_of(check(Shape(mask=True, other=1), 3, "cp.async", 4))
    assert body.count("tile.load") == 1
    assert body.count("tgpu.async_copy") == 1
    assert body.count("tgpu.local_store") == 1


def test_pieces_too_narrow_to_copy_go_through_registers():
    text = Shape(element="f16").text().replace(ALIGNED, "{tile.divisibility = 2 : i64}")
    module = parse(text)
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=2, warp_size=32)
        pipeline_loops(module, stages=3, copy="cp.async")
    assert "tgpu.async_copy" not in str(module)
    assert body_of(str(module)).count("tgpu.local_store") == 2


def test_a_list_of_tiles_reads_its_table_ahead():
    body = body_of(check(Shape(address="table"), 3, "cp.async", 5))
    assert body.count("tgpu.async_copy") == 2
    assert body.count('"tile.load"') == 1


def test_trips_that_surely_exist_are_not_masked():
    text = Shape().text().replace("to %n step", "to %size step")
    module = parse(text)
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=2, warp_size=32)
        pipeline_loops(module, stages=3, copy="cp.async")
    before = str(module).partition("scf.for")[0]
    assert before.count("operandSegmentSizes") == 0
    assert "tensor<8x8xi1" not in before


@pytest.mark.parametrize(("bound", "slots"), [("one", 0), ("two", 2), ("size", 4)])
def test_no_more_trips_are_at_work_than_there_are(bound: str, slots: int):
    module = parse(Shape().text().replace("to %n step", f"to %{bound} step"))
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=2, warp_size=32)
        pipeline_loops(module, stages=4, copy="cp.async")
    assert (f"tensor<{slots}x8x8xf32" in str(module)) == bool(slots)


def test_an_address_that_may_divide_by_zero_stays_in_its_trip():
    divided = "%iq = arith.divsi %i, %s : i32\n%ia = arith.muli %iq,"
    text = Shape().text().replace("%ia = arith.muli %i,", divided)
    for argument, copies in (("%s: i32", 1), ("%s: i32 {tile.min = 1 : i64}", 2)):
        module = parse(text.replace("%s: i32", argument))
        with module.context, ir.Location.unknown():
            assign_layouts(module, num_warps=2, warp_size=32)
            pipeline_loops(module, stages=3, copy="cp.async")
        assert body_of(str(module)).count("tgpu.async_copy") == copies


def test_an_atomic_that_orders_memory_holds_loads_back():
    shape = Shape()
    atomic = """%old = "tile.atomic_rmw"(%t, %i) {kind = "add"} : (!tile.ptr<i32>, i32) -> i32
          %qn = """
    module = parse(shape.text().replace("%qn = ", atomic, 1))
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=2, warp_size=32)
        pipeline_loops(module, stages=3, copy="cp.async")
    assert "tgpu.async_copy" not in str(module)


def test_the_functions_stages_override_the_passs():
    text = Shape().text().replace(") {", ") attributes {tile.num_stages = 4 : i64} {", 1)
    module = parse(text)
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=2, warp_size=32)
        pipeline_loops(module, stages=1, copy="cp.async")
    assert "tensor<4x8x8xf32" in str(module)
