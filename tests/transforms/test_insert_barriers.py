"""Barriers: golden tests, and random programs against a check of every run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.insert_barriers import insert_barriers

from .barrier_oracle import MOST_RUNS, race, runs

LAYOUTS = """
  "tgpu.layout"() {sym_name = "x", map = "register=[[1]] lane=[[2],[4],[8],[16],[32]] warp=[[64]] shape=[128]"} : () -> ()
  "tgpu.layout"() {sym_name = "y", map = "register=[[64]] lane=[[1],[2],[4],[8],[16]] warp=[[32]] shape=[128]"} : () -> ()
  "tgpu.layout"() {sym_name = "copies", map = "register=[[32],[64]] lane=[[1],[2],[4],[8],[16]] warp=[[0]] shape=[128]"} : () -> ()
  "tgpu.layout"() {sym_name = "s", map = "offset=[[1],[2],[4],[8],[16],[32],[64]] shape=[128]"} : () -> ()
"""
HELD = "!tgpu.shared<tensor<128xf32, @s>>"


def module_of(text: str, arguments: str = "") -> ir.Module:
    return parse(f"module {{ {LAYOUTS} func.func @kernel({arguments}) {{ {text} return }} }}")


def run(module: ir.Module) -> list[str]:
    """Run the pass and give the names of the memory ops and barriers in program order."""
    contracts.check(module, contracts.TGPU)
    with module.context, ir.Location.unknown():
        insert_barriers(module)
    contracts.check(module, contracts.TGPU)
    kept = ("local", "barrier", "load", "store", "atomic", "share", "async", "expect")
    found: list[str] = []
    for op in operations(module.operation):
        name = op.operation.name.partition(".")[2]
        if name == "barrier":
            memory = ir.StringAttr(op.operation.attributes["memory"])
            found.append(f"barrier {memory.value}")
        elif any(word in name for word in kept):
            found.append(name)
    return found


def alloc(name: str, slots: str = "", offset: int | None = None) -> str:
    at = "" if offset is None else f"{{offset = {offset} : i64}}"
    return f'%{name} = "tgpu.alloc"() {at} : () -> !tgpu.shared<tensor<{slots}128xf32, @s>>\n'


def store(buffer: str, layout: str = "x") -> str:
    return (
        f'"tgpu.local_store"(%{layout}, %{buffer}) : (tensor<128xf32, @{layout}>, {HELD}) -> ()\n'
    )


def load(buffer: str, layout: str = "y") -> str:
    return f'"tgpu.local_load"(%{buffer}) : ({HELD}) -> tensor<128xf32, @{layout}>\n'


VALUES = "".join(
    f"%{name} = arith.constant dense<0.0> : tensor<128xf32, @{name}>\n"
    for name in ("x", "y", "copies")
)


def test_the_author_s_barrier_orders_all_memory():
    assert run(module_of('"tile.barrier"() : () -> ()')) == ["barrier all"]


def test_a_load_in_another_layout_waits_for_the_store():
    text = VALUES + alloc("a") + store("a") + load("a")
    assert run(module_of(text)) == ["local_store", "barrier shared", "local_load"]


def test_who_uses_an_mbarrier_waits_until_it_is_made():
    barrier = "!tgpu.shared<tensor<1xi64, @one>>"
    text = f"""
      "tgpu.layout"() {{sym_name = "one", map = "shape=[1]"}} : () -> ()
      func.func @kernel(%yes: i1) {{
        %m = "tgpu.alloc"() : () -> {barrier}
        "tgpu.mbarrier_init"(%m) : ({barrier}) -> ()
        "tgpu.mbarrier_expect"(%m, %yes) {{bytes = 64 : i64}} : ({barrier}, i1) -> ()
        "tgpu.mbarrier_expect"(%m, %yes) {{bytes = 64 : i64}} : ({barrier}, i1) -> ()
        return
      }}"""
    wanted = ["mbarrier_init", "barrier shared", "mbarrier_expect", "mbarrier_expect"]
    assert run(parse(f"module {{ {text} }}")) == wanted


def test_a_load_of_what_each_thread_stored_itself_does_not_wait():
    text = VALUES + alloc("a") + store("a") + load("a", "x")
    assert run(module_of(text)) == ["local_store", "local_load"]


def test_copies_of_an_element_are_read_by_others_even_in_one_layout():
    text = VALUES + alloc("a") + store("a", "copies") + load("a", "copies")
    assert run(module_of(text)) == ["local_store", "barrier shared", "local_load"]


def test_one_barrier_serves_two_buffers():
    text = VALUES + alloc("a") + alloc("b") + store("a") + store("b") + load("a") + load("b")
    assert run(module_of(text)) == [
        "local_store", "local_store", "barrier shared", "local_load", "local_load",
    ]  # fmt: skip


def test_buffers_that_share_bytes_wait_for_each_other():
    apart = VALUES + alloc("a", offset=0) + alloc("b", offset=512) + load("a") + store("b")
    assert run(module_of(apart)) == ["local_load", "local_store"]
    shared = VALUES + alloc("a", offset=0) + alloc("b", offset=256) + load("a") + store("b")
    assert run(module_of(shared)) == ["local_load", "barrier shared", "local_store"]


def test_a_loop_waits_for_its_last_trip():
    text = f"""{VALUES} {alloc("a")}
      scf.for %i = %n to %n step %n : i32 {{ {store("a")} {load("a")} }}"""
    assert run(module_of(text, "%n: i32")) == [
        "barrier shared", "local_store", "barrier shared", "local_load",
    ]  # fmt: skip


def test_what_only_the_first_trip_waits_for_is_waited_for_before_the_loop():
    text = f"""{VALUES} {alloc("a")} {store("a")}
      scf.for %i = %n to %n step %n : i32 {{ {load("a")} {load("a")} }}"""
    module = module_of(text, "%n: i32")
    assert run(module) == ["local_store", "barrier shared", "local_load", "local_load"]
    kernel = module.body.operations[4]
    assert "tgpu.barrier" in [op.operation.name for op in kernel.regions[0].blocks[0].operations]


def test_a_branch_that_stores_is_waited_for_behind_it():
    text = f"""{VALUES} {alloc("a")}
      scf.if %c {{ {store("a")} }}
      {load("a")}"""
    assert run(module_of(text, "%c: i1")) == ["local_store", "barrier shared", "local_load"]


def test_a_barrier_that_is_there_is_enough():
    there = '"tgpu.barrier"() {memory = "shared"} : () -> ()\n'
    text = VALUES + alloc("a") + store("a") + there + load("a")
    assert run(module_of(text)) == ["local_store", "barrier shared", "local_load"]


# Slots of a pipeline.

PIPELINE = """
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c3 = arith.constant 3 : i32
  {values} {alloc}
  {prologue}
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%head = %c0, %tail = %c2) -> (i32, i32) : i32 {{
    {body}
    %h1 = arith.addi %head, %c1 : i32
    %h2 = arith.cmpi eq, %h1, %c3 : i32
    %h3 = arith.select %h2, %c0, %h1 : i32
    %t1 = arith.addi %tail, %c1 : i32
    %t3 = arith.remsi %t1, %c3 : i32
    scf.yield %h3, %t3 : i32, i32
  }}
"""


def slot(name: str, buffer: str, index: str, slots: int = 3) -> str:
    kind = f"!tgpu.shared<tensor<{slots}x128xf32, @s>>"
    return f'%{name} = "tgpu.slot"(%{buffer}, %{index}) : ({kind}, i32) -> {HELD}\n'


def pipeline(body: str, prologue: str = "") -> ir.Module:
    text = PIPELINE.format(values=VALUES, alloc=alloc("a", "3x"), prologue=prologue, body=body)
    return module_of(text, "%n: i32")


def test_a_pipeline_of_copies_has_one_barrier_a_trip():
    copy = (
        '"tgpu.async_copy"(%p, %{0}) {{operandSegmentSizes = array<i32: 1, 1, 0>}} : '
        "(tensor<128x!tile.ptr<f32>, @x>, " + HELD + ") -> ()\n"
        '"tgpu.async_commit"() : () -> ()\n'
    )
    prologue = (
        '%p = "tile.splat"(%q) : (!tile.ptr<f32>) -> tensor<128x!tile.ptr<f32>, @x>\n'
        + slot("p0", "a", "c0") + copy.format("p0") + slot("p1", "a", "c1") + copy.format("p1")
    )  # fmt: skip
    body = (
        '"tgpu.async_wait"() {pending = 1 : i64} : () -> ()\n'
        + slot("u", "a", "head") + load("u") + slot("v", "a", "tail") + copy.format("v")
    )  # fmt: skip
    text = PIPELINE.format(values=VALUES, alloc=alloc("a", "3x"), prologue=prologue, body=body)
    names = run(module_of(text, "%n: i32, %q: !tile.ptr<f32>"))
    assert names[4:] == [
        "async_wait", "barrier shared", "local_load", "async_copy", "async_commit",
    ]  # fmt: skip


def test_a_pipeline_staged_in_registers_has_one_barrier_a_trip():
    body = slot("u", "a", "head") + load("u") + slot("v", "a", "tail") + store("v")
    prologue = slot("p0", "a", "c0") + store("p0") + slot("p1", "a", "c1") + store("p1")
    module = pipeline(body, prologue)
    before, *loop = run(module)[2:]
    assert before == "barrier shared"
    assert loop == ["local_load", "barrier shared", "local_store"]
    assert race(runs(module)) is None


def test_slots_that_may_be_one_are_kept_apart_by_a_barrier():
    body = slot("u", "a", "head") + load("u") + slot("v", "a", "head") + store("v")
    module = pipeline(body)
    assert run(module) == ["local_load", "barrier shared", "local_store"]
    assert race(runs(module)) is None


def test_an_index_that_nothing_is_known_of_may_be_any_slot():
    text = f"""{VALUES} {alloc("a", "3x")}
      {slot("u", "a", "m")} {store("u")}
      {slot("v", "a", "n")} {load("v")}"""
    names = run(module_of(text, "%m: i32, %n: i32"))
    assert names == ["local_store", "barrier shared", "local_load"]


# Global memory.

POINTERS = """
  %p = "tile.splat"(%q) : (!tile.ptr<f32>) -> tensor<128x!tile.ptr<f32>, @x>
  %p2 = "tile.addptr"(%p, %i) : (tensor<128x!tile.ptr<f32>, @x>, tensor<128xi32, @x>) -> tensor<128x!tile.ptr<f32>, @x>
  %o = "tile.splat"(%w) : (!tile.ptr<f32>) -> tensor<128x!tile.ptr<f32>, @x>
"""
POINTER_ARGUMENTS = "%q: !tile.ptr<f32>, %w: !tile.ptr<f32>"
INDEX = "%i = arith.constant dense<1> : tensor<128xi32, @x>\n"


def gload(name: str, pointer: str) -> str:
    return (
        f'%{name} = "tile.load"(%{pointer}) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : '
        f"(tensor<128x!tile.ptr<f32>, @x>) -> tensor<128xf32, @x>\n"
    )


def gstore(pointer: str) -> str:
    return (
        f'"tile.store"(%{pointer}, %x) : '
        "(tensor<128x!tile.ptr<f32>, @x>, tensor<128xf32, @x>) -> ()\n"
    )


def atomic(pointer: str, sem: str = "relaxed", kind: str = "fadd") -> str:
    return (
        f'%{pointer}_old = "tile.atomic_rmw"(%{pointer}, %x) {{kind = "{kind}", sem = "{sem}"}} : '
        "(tensor<128x!tile.ptr<f32>, @x>, tensor<128xf32, @x>) -> tensor<128xf32, @x>\n"
    )


def global_names(text: str) -> list[str]:
    return run(module_of(VALUES + INDEX + POINTERS + text, POINTER_ARGUMENTS))


def test_a_load_behind_a_store_through_the_same_argument_waits():
    assert global_names(gstore("p") + gload("a", "p2")) == ["store", "barrier all", "load"]


def test_the_same_pointers_in_the_same_layout_need_no_barrier():
    assert global_names(gload("a", "p") + gstore("p") + gload("b", "p")) == [
        "load", "store", "load",
    ]  # fmt: skip


def test_arguments_are_taken_to_point_to_different_memory():
    assert global_names(gstore("p") + gload("a", "o")) == ["store", "load"]


def test_two_loads_need_no_barrier():
    assert global_names(gload("a", "p") + gload("b", "p2")) == ["load", "load"]


def test_a_pointer_that_moves_in_a_loop_is_another_one_each_trip():
    body = f"""%z = "tile.addptr"(%p, %i) : (tensor<128x!tile.ptr<f32>, @x>, tensor<128xi32, @x>)
      -> tensor<128x!tile.ptr<f32>, @x>
      {gload("a", "z")} {gstore("z")}"""
    text = f"scf.for %k = %n to %n step %n : i32 {{ {body} }}"
    module = module_of(VALUES + INDEX + POINTERS + text, POINTER_ARGUMENTS + ", %n: i32")
    assert run(module) == ["barrier all", "load", "store"]


def test_an_atomic_that_releases_comes_after_all_that_was_before():
    assert global_names(gstore("p") + atomic("o", "release")) == [
        "store", "barrier all", "atomic_rmw",
    ]  # fmt: skip
    assert global_names(gstore("p") + atomic("o")) == ["store", "atomic_rmw"]


@pytest.mark.parametrize(("kind", "barriers"), [("fadd", 0), ("xchg", 1)])
def test_atomics_that_commute_need_no_order(kind: str, barriers: int):
    names = global_names(atomic("p", kind=kind) + atomic("p2", kind=kind))
    assert names.count("barrier all") == barriers


def test_scalars_are_written_by_one_thread_and_read_by_all():
    text = """%one = arith.constant 1.0 : f32
      "tile.store"(%q, %one) : (!tile.ptr<f32>, f32) -> ()
      "tile.store"(%q, %one) : (!tile.ptr<f32>, f32) -> ()
      %l = "tile.load"(%q) {operandSegmentSizes = array<i32: 1, 0, 0>} : (!tile.ptr<f32>) -> f32
      "tile.store"(%q, %l) : (!tile.ptr<f32>, f32) -> ()"""
    assert global_names(text) == [
        "store", "store", "barrier all", "load", "barrier all", "store",
    ]  # fmt: skip


# Random programs.

Statement = tuple[object, ...]


def statements(depth: int) -> st.SearchStrategy[list[Statement]]:
    access = st.tuples(
        st.sampled_from(["store", "load"]), st.sampled_from("ab"), st.sampled_from("xy")
    )
    one: st.SearchStrategy[Statement] = access
    if depth:
        inner = statements(depth - 1)
        one = (
            access
            | access
            | st.tuples(st.just("for"), inner)
            | st.tuples(st.just("if"), inner, inner)
        )
    return st.lists(one, min_size=1, max_size=4)


def written(program: list[Statement], depth: int = 0) -> str:
    text = ""
    for kind, *rest in program:
        if kind == "for":
            text += (
                f"scf.for %i{depth} = %n to %n step %n : i32 {{ {written(rest[0], depth + 1)} }}\n"  # type: ignore[arg-type]
            )
        elif kind == "if":
            text += f"scf.if %c {{ {written(rest[0], depth + 1)} }} else {{ {written(rest[1], depth + 1)} }}\n"  # type: ignore[arg-type]
        elif kind == "store":
            text += store(str(rest[0]), str(rest[1]))
        else:
            text += load(str(rest[0]), str(rest[1]))
    return text


@settings(max_examples=60, deadline=None)
@given(statements(2), st.sampled_from([(0, 512), (0, 256)]))
def test_no_run_of_a_random_program_races_and_no_barrier_is_idle(
    program: list[Statement], offsets: tuple[int, int]
):
    text = VALUES + alloc("a", offset=offsets[0]) + alloc("b", offset=offsets[1]) + written(program)
    module = module_of(text, "%n: i32, %c: i1")
    run(module)
    every = runs(module)
    assert race(every) is None
    barriers = {event.op for events in every for event in events if event.is_barrier}
    for barrier in barriers if len(every) < MOST_RUNS else ():
        assert race(every, without=barrier) is not None
