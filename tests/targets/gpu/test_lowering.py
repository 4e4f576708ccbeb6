"""What handlers ask of a kernel's `Lowering`: the machine hands out one that looks around."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import CompilerBug, KernelError, Span
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.lower_to_machine import lower_to_machine
from tiledsl.targets.gpu.lowering import Handler, Lowering, Role, element_type, elements_of
from tiledsl.targets.gpu.pointers import Form, Term, is_pointers
from tiledsl.targets.nvptx.chips import chip
from tiledsl.targets.nvptx.lower import NvptxMachine

ROW, FEW = "tensor<128xi32, @row>", "tensor<16xi32, @few>"
POINTERS = "tensor<128x!tile.ptr<f32>, @row>"
KERNEL = f"""
"tgpu.layout"() {{sym_name = "row", map = "register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[] shape=[128]"}} : () -> ()
"tgpu.layout"() {{sym_name = "few", map = "register=[] lane=[[1],[2],[4],[8],[0]] warp=[] shape=[16]"}} : () -> ()
func.func @k(%p: !tile.ptr<f32>, %n: i32, %c: i1) attributes {{tile.num_warps = 1 : i64, tgpu.producer_warps = 1 : i64}} {{
  %r = "tile.make_range"() {{start = 0, end = 128}} : () -> {ROW}
  %few = "tile.make_range"() {{start = 0, end = 16}} : () -> {FEW}
  %same = "tile.splat"(%p) : (!tile.ptr<f32>) -> {POINTERS}
  BODY
  return
}}"""


@dataclass(frozen=True)
class Watched(NvptxMachine):
    """A machine that lowers some ops as a test says, and keeps what it is asked for."""

    probes: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
    met: list[tuple[int | None, bool]] = field(default_factory=list[tuple[int | None, bool]])
    same: list[ir.Value] = field(default_factory=list[ir.Value])

    @property
    def handlers(self) -> Mapping[str, Any]:
        return {**super().handlers, **self.probes}

    def barrier(
        self, memory: str, *, proxy: bool, threads: int | None = None, cluster: bool = False
    ) -> None:
        self.met.append((threads, cluster))

    def uniform(self, value: ir.Value) -> ir.Value:
        self.same.append(value)
        return value


def lower(body: str, **probes: Callable[[Lowering, Any], object]) -> tuple[ir.Module, Watched]:
    """Lower a kernel; each probe, which has to be reached, stands for `tile` or one of its ops."""
    module = parse(KERNEL.replace("BODY", body))
    contracts.check(module, contracts.TGPU)
    reached: set[str] = set()

    def reaching(name: str) -> Handler:
        def handler(lowering: Lowering, op: Any) -> None:
            reached.add(name)
            probes[name](lowering, op)

        return handler

    named = {f"tile.{name}".removesuffix(".any"): reaching(name) for name in probes}
    machine = Watched(chip("sm_90a"), probes=named)
    with module.context, ir.Location.unknown():
        lower_to_machine(module, machine=machine)
    assert reached == set(probes)
    return module, machine


def show(value: str, type_: str) -> str:
    """Give an op that a probe can find a value by."""
    return f'"tile.print"({value}) {{prefix = ""}} : ({type_}) -> ()'


# Ops.

DIVIDED = '%d = "tile.floordiv"(%n, %n) {signed = true} : (i32, i32) -> i32 loc("k.py":2:5 to :11)'


def test_an_ops_own_handler_goes_before_that_of_its_dialect() -> None:
    seen: list[str] = []
    lower(
        '"tile.barrier"() : () -> ()\n' + DIVIDED,
        any=lambda lowering, op: seen.append(f"any {op.operation.name}"),
        barrier=lambda lowering, op: seen.append(f"own {op.operation.name}"),
    )
    assert seen == ["own tile.barrier", "any tile.floordiv"]


def test_an_op_that_nothing_lowers_is_a_bug() -> None:
    with pytest.raises(CompilerBug) as raised:
        lower(DIVIDED)
    op = '%0 = "tile.floordiv"(%arg1, %arg1) {signed = true} : (i32, i32) -> i32'
    found = re.sub(r"%\d+ =", "%0 =", str(raised.value))
    assert found == f"expected an op that GPUs lower, found {op}"


@pytest.mark.parametrize("own", [None, Span("helper.py", 7, 1, 7, 4)])
def test_what_a_machine_refuses_is_shown_at_the_op_unless_it_says_where(own: Span | None) -> None:
    def refuse(lowering: Lowering, op: Any) -> None:
        raise KernelError("expected another chip", own)

    with pytest.raises(KernelError) as raised:
        lower(DIVIDED, floordiv=refuse)
    assert raised.value.message == "expected another chip"
    assert raised.value.span == (own or Span("k.py", 2, 5, 2, 11))


def test_what_a_handler_builds_has_the_position_of_its_op() -> None:
    here: list[str] = []
    lower(DIVIDED, floordiv=lambda lowering, op: here.append(str(ir.Location.current)))
    assert here == ['loc("k.py":2:5)']


# Values.

LOOP = f"""%zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  scf.for %i = %zero to %n step %one : i32 {{
    {show("%i", "i32")}
    {show("%i", "i32")}
  }}"""


def test_what_is_built_once_stands_at_the_entry_where_every_block_may_use_it() -> None:
    made: list[ir.Value] = []
    asked: list[ir.Value] = []

    def ask(lowering: Lowering, op: Any) -> None:
        def make() -> ir.Value:
            made.append(emit.i32(len(made)))
            return made[-1]

        asked.extend([lowering.once("a", make), lowering.once("b", make)])

    module, _ = lower(LOOP, print=ask)
    assert asked == [*made, *made]
    assert len(made) == 2
    (kernel,) = (op for op in module.body.operations if op.operation.name == "llvm.func")
    assert all(value.owner.parent == kernel.operation for value in made)


def test_registers_known_to_be_alike_are_remembered_and_others_each_their_own() -> None:
    def ask(lowering: Lowering, op: Any) -> None:
        each = lowering.term(op.value)
        assert each.values == lowering.value(op.value)
        assert list(each.indices) == [0, 1, 2, 3]
        alike = Term(emit.constants([5]), each.indices * 0)
        lowering.remember(op.value, alike)
        assert lowering.term(op.value) is alike

    lower(show("%r", ROW), print=ask)


def test_scalar_ops_are_on_vectors_while_they_are_lowered_so() -> None:
    types: list[str] = []

    def ask(lowering: Lowering, op: Any) -> None:
        with lowering.on_vectors(8):
            types.append(str(lowering.type_of(op.value)))
        types.append(str(lowering.type_of(op.value)))

    lower(show("%n", "i32") + show("%r", ROW), print=ask)
    assert types == ["vector<8xi32>", "i32", "vector<4xi32>", "vector<4xi32>"]


FORMS = {
    "%same": (Form.UNIFORM, ["!llvm.ptr<1>"]),
    "%narrow": (Form.NARROW, ["!llvm.ptr<1>", "vector<4xi32>"]),
    "%double": (Form.DOUBLE, ["!llvm.ptr<1>", "vector<4xi32>", "vector<4xi32>"]),
    "%wide": (Form.WIDE, ["!llvm.ptr<1>", "vector<4xi64>"]),
    "%chosen": (Form.SEPARATE, ["vector<4x!llvm.ptr<1>>"]),
}
MOVED = f"""
  %narrow = "tile.addptr"(%same, %r) : ({POINTERS}, {ROW}) -> {POINTERS}
  %double = "tile.addptr"(%narrow, %r) : ({POINTERS}, {ROW}) -> {POINTERS}
  %wide = "tile.addptr"(%double, %r) : ({POINTERS}, {ROW}) -> {POINTERS}
  %mask = arith.cmpi slt, %r, %r : {ROW}
  %chosen = arith.select %mask, %same, %narrow : tensor<128xi1, @row>, {POINTERS}
"""


@pytest.mark.parametrize("name", FORMS)
def test_control_flow_carries_pointers_as_the_parts_of_their_form(name: str) -> None:
    form, types = FORMS[name]

    def ask(lowering: Lowering, op: Any) -> None:
        old = op.value
        held = lowering.pointers(old)
        parts = lowering.parts(old)
        assert lowering.form(old) is held.form is form
        assert [str(part.type) for part in parts] == types
        assert [str(type_) for type_ in lowering.part_types(old)] == types
        rest = iter([*parts, *parts])
        lowering.bind(old, rest)
        again = lowering.lowered(old)
        assert is_pointers(again)
        assert again is not held
        assert (again.form, again.registers, again.element) == (form, 4, held.element)
        assert again.values() == list(rest) == parts

    module, _ = lower(MOVED + show(name, POINTERS), print=ask)
    assert module.operation.verify()


def test_a_value_comes_as_a_whole_whatever_form_its_pointers_have() -> None:
    types: list[str] = []
    shown = "\n".join(show(name, POINTERS) for name in FORMS)
    lower(
        MOVED + shown, print=lambda lowering, op: types.append(str(lowering.value(op.value).type))
    )
    assert types == ["vector<4x!llvm.ptr<1>>"] * len(FORMS)


@pytest.mark.parametrize(("given", "wanted"), [("%narrow", "%wide"), ("%double", "%chosen")])
def test_what_a_handler_defines_comes_to_the_form_decided(given: str, wanted: str) -> None:
    both: list[ir.Value] = []

    def ask(lowering: Lowering, op: Any) -> None:
        both.append(op.value)
        if len(both) == 2:
            earlier = lowering.pointers(both[0])
            lowering.define(both[1], earlier)
            found = lowering.pointers(both[1])
            assert [str(part.type) for part in found.values()] == FORMS[wanted][1]
            assert (found.registers, found.element) == (earlier.registers, earlier.element)

    lower(MOVED + show(given, POINTERS) + show(wanted, POINTERS), print=ask)


def test_addresses_that_a_handler_defines_are_pointers_each_on_its_own() -> None:
    def ask(lowering: Lowering, op: Any) -> None:
        addresses = lowering.value(op.value)
        lowering.define(op.value, addresses)
        found = lowering.pointers(op.value)
        assert found.values() == [addresses]
        assert (found.form, found.registers, str(found.element)) == (Form.SEPARATE, 4, "f32")

    lower(MOVED + show("%chosen", POINTERS), print=ask)


def test_a_scalar_pointer_is_a_tile_of_one() -> None:
    def ask(lowering: Lowering, op: Any) -> None:
        pointers = lowering.pointers(op.value)
        assert (pointers.form, pointers.registers) == (Form.UNIFORM, 1)
        assert pointers.values() == [lowering.value(op.value)] == lowering.parts(op.value)
        assert str(pointers.element) == "f32"
        assert [str(type_) for type_ in lowering.part_types(op.value)] == ["!llvm.ptr<1>"]

    lower(show("%p", "!tile.ptr<f32>"), print=ask)


def test_parts_come_in_the_form_of_what_they_are_handed_to() -> None:
    both: list[ir.Value] = []

    def ask(lowering: Lowering, op: Any) -> None:
        both.append(op.value)
        if len(both) == 2:
            parts = lowering.parts(both[0], like=both[1])
            assert [str(part.type) for part in parts] == FORMS["%wide"][1]

    lower(MOVED + show("%narrow", POINTERS) + show("%wide", POINTERS), print=ask)


# Threads.


def test_one_thread_acts_for_each_element() -> None:
    masks: list[int | None] = []

    def ask(lowering: Lowering, op: Any) -> None:
        acting: Any = lowering.acting(op.value)
        masks.append(acting and _mask(acting))

    lower(show("%r", ROW) + show("%few", FEW) + show("%n", "i32"), print=ask)
    assert masks == [None, 16, 31]


def _mask(is_clear: Any) -> int:
    """Return which bits of the thread's number a predicate wants to be clear."""
    return int(is_clear.owner.operands[0].owner.operands[1].owner.attributes["value"].value)


PARTS = """%copies = "tgpu.producer"() : () -> i1
  scf.if %copies {
    "tile.barrier"() : () -> ()
  } else {
    "tile.barrier"() : () -> ()
    scf.if %c {
      "tile.barrier"() : () -> ()
    }
  }
  "tile.barrier"() : () -> ()"""


def test_roles_last_as_long_as_the_branch_of_their_warps() -> None:
    roles: list[Role] = []
    lower(PARTS, barrier=lambda lowering, op: roles.append(lowering.role))
    assert roles == [Role.PRODUCER, Role.CONSUMER, Role.CONSUMER, Role.ALL]


@pytest.mark.parametrize("cluster", [False, True])
def test_those_meet_who_execute_the_barrier(cluster: bool) -> None:
    refused: list[str] = []

    def meet(lowering: Lowering, op: Any) -> None:
        try:
            lowering.meet("shared", proxy=False, cluster=cluster)
        except CompilerBug as bug:
            refused.append(bug.message)

    _, machine = lower(PARTS, barrier=meet)
    copying = "expected no barrier in warps that copy boxes"
    some = "expected no barrier of several blocks where not all threads come"
    assert refused == ([copying, some, some] if cluster else [copying])
    assert machine.met == ([(None, True)] if cluster else [(32, False), (32, False), (None, False)])


def test_a_decision_is_the_same_in_all_threads_but_where_each_goes_its_own_way() -> None:
    decided: list[bool] = []

    def ask(lowering: Lowering, op: Any) -> None:
        def decide() -> None:
            asked = len(machine.same)
            assert lowering.decision(op.value) == lowering.value(op.value)
            decided.append(len(machine.same) > asked)

        machine: Any = lowering.machine
        decide()
        with lowering.apart():
            decide()
            with lowering.apart():
                pass
            decide()
        decide()

    lower(show("%n", "i32"), print=ask)
    assert decided == [True, False, False, True]


def test_registers_come_apart_and_tiles_tell_their_elements() -> None:
    def ask(lowering: Lowering, op: Any) -> None:
        (four,) = elements_of([lowering.value(op.value)])
        assert [str(value.type) for value in four] == ["i32"] * 4
        assert str(element_type(op.value)) == "i32"

    lower(show("%r", ROW), print=ask)
