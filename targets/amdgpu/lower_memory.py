"""Global memory on AMD: loads without branches, stores and atomics under EXEC.

AMD's loads have no predicate of their own. A lane that must not read gets the address of a constant
of zeros in the code object instead (`ZEROS`), so a masked load is a select of addresses and costs
no branch, the scheduler may move it as any other load, and where masked-off lanes are to give 0, as
they do unless the author asks for something else, nothing is selected afterwards. Stores and
atomics branch: `scf.if`, which becomes a mask in EXEC.

Atomics: most of the hardware's instructions work only in memory that a GPU has for itself, which is
what allocators give (coarse-grained memory), and not across PCIe or in memory shared finely with
the CPU. Scopes "cta" and "gpu" promise the former; with "sys" such a kind becomes a
compare-and-swap loop, which works everywhere. LLVM makes such a loop too wherever a chip lacks the
instruction.

Source: LLVM's AMDGPUUsage, "Memory Model" (sync scopes) and "LLVM IR Metadata" (fine-grained
memory).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlir import ir
from mlir.dialects import llvm, scf

from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import Address, Hints

ZEROS = "tiledsl.zeros"
"""The global that masked-off lanes read."""
ZEROS_BYTES = 16
"""The widest load of a lane."""

_SCOPES = {"cta": "workgroup", "gpu": "agent", "sys": None}
_ORDERINGS = {
    "relaxed": llvm.AtomicOrdering.monotonic,
    "acquire": llvm.AtomicOrdering.acquire,
    "release": llvm.AtomicOrdering.release,
    "acq_rel": llvm.AtomicOrdering.acq_rel,
}
_FAILURE = {"acquire": llvm.AtomicOrdering.acquire, "acq_rel": llvm.AtomicOrdering.acquire}
"""A failed compare-and-swap writes nothing, so it cannot release."""
_KINDS = {
    "add": llvm.AtomicBinOp.add,
    "fadd": llvm.AtomicBinOp.fadd,
    "max": llvm.AtomicBinOp.max,
    "umax": llvm.AtomicBinOp.umax,
    "min": llvm.AtomicBinOp.min,
    "umin": llvm.AtomicBinOp.umin,
    "and": llvm.AtomicBinOp._and,
    "or": llvm.AtomicBinOp._or,
    "xor": llvm.AtomicBinOp._xor,
    "xchg": llvm.AtomicBinOp.xchg,
}


def declare_zeros() -> None:
    """Build the constant that masked-off lanes read; one that nobody reads is dropped later."""
    bytes_ = ir.RankedTensorType.get([ZEROS_BYTES], emit.integer(8))
    llvm.mlir_global(
        ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{ZEROS_BYTES} x i8>")),
        ZEROS,
        ir.Attribute.parse("#llvm.linkage<internal>"),
        constant=True,
        value=ir.DenseElementsAttr.get_splat(bytes_, ir.IntegerAttr.get(emit.integer(8), 0)),
        alignment=ZEROS_BYTES,
        addr_space=1,
    )


def load(
    type_: ir.Type,
    address: Address,
    alignment: int,
    hints: Hints,
    predicate: ir.Value | None,
    other: ir.Value | None,
) -> ir.Value:
    """Read a vector; see `Machine.load`."""
    pointer = address.pointer()
    if predicate is not None:
        zeros = llvm.mlir_addressof(pointer.type, ZEROS)
        pointer = emit.select(predicate, pointer, zeros)
    loaded = llvm.load(
        type_,
        pointer,
        alignment=alignment,
        volatile_=hints.volatile or hints.cache == "cv" or None,
        nontemporal=_streams(hints) or None,
    )
    if predicate is None or other is None or _is_zero(other):
        return loaded
    return emit.select(predicate, loaded, other)


def store(
    value: ir.Value, address: Address, alignment: int, hints: Hints, predicate: ir.Value | None
) -> None:
    """Write a vector; see `Machine.store`."""
    pointer = address.pointer()

    def act() -> None:
        llvm.store(value, pointer, alignment=alignment, nontemporal=_streams(hints) or None)

    _where(predicate, act)


def atomic_rmw(
    kind: str,
    address: Address,
    value: ir.Value,
    sem: str,
    scope: str,
    predicate: ir.Value | None,
    *,
    used: bool,
) -> ir.Value:
    """Update an element atomically; see `Machine.atomic_rmw`."""
    pointer = address.pointer()

    def act() -> ir.Value:
        old = llvm.atomicrmw(
            _KINDS[kind], pointer, value, _ORDERINGS[sem], syncscope=_SCOPES[scope]
        )
        if scope != "sys":
            attributes = old.owner.attributes
            attributes["rocdl.no_fine_grained_memory"] = ir.UnitAttr.get()
            attributes["rocdl.no_remote_memory"] = ir.UnitAttr.get()
        return old

    return _value_where(predicate, value.type, act, used)


def atomic_cas(
    address: Address,
    compare: ir.Value,
    value: ir.Value,
    sem: str,
    scope: str,
    predicate: ir.Value | None,
) -> ir.Value:
    """Compare and swap an element; see `Machine.atomic_cas`."""
    pointer = address.pointer()

    def act() -> ir.Value:
        failure = _FAILURE.get(sem, llvm.AtomicOrdering.monotonic)
        pair = llvm.cmpxchg(
            pointer, compare, value, _ORDERINGS[sem], failure, syncscope=_SCOPES[scope]
        )
        return llvm.extractvalue(value.type, pair, [0])

    return _value_where(predicate, value.type, act, used=True)


def has_atomic(kind: str, element: ir.Type) -> bool:
    """Whether `atomic_rmw` takes a kind for an element type; LLVM widens those below 32 bits."""
    return kind in _KINDS and isinstance(element, ir.FloatType) == (kind == "fadd")


def _where(predicate: ir.Value | None, act: Callable[[], object]) -> None:
    """Act in the lanes whose predicate is true."""
    if predicate is None:
        act()
        return
    _hold_branch()
    branch = scf.IfOp(predicate)
    with ir.InsertionPoint(branch.then_block):
        act()
        scf.YieldOp([])


def _value_where(
    predicate: ir.Value | None, type_: ir.Type, act: Callable[[], ir.Value], used: bool
) -> ir.Value:
    """Act in the lanes whose predicate is true; the others get 0."""
    if predicate is None:
        return act()
    if not used:
        _where(predicate, act)
        return emit.zero(type_)
    _hold_branch()
    branch = scf.IfOp(predicate, [type_], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        scf.YieldOp([act()])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([emit.zero(type_)])
    return branch.results[0]


def _streams(hints: Hints) -> bool:
    """Whether the data will not be asked for again soon."""
    return hints.eviction == "evict_first" or hints.cache == "cs"


def _is_zero(value: ir.Value) -> bool:
    """Whether every bit of a constant is 0."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return False
    held = owner.operation.attributes["value"]
    if not isinstance(held, ir.DenseElementsAttr) or not held.is_splat:
        return False
    number = held.get_splat_value()
    if isinstance(number, ir.IntegerAttr):
        return number.value == 0
    return (
        isinstance(number, ir.FloatAttr)
        and number.value == 0
        and math.copysign(1, number.value) == 1
    )


def _hold_branch() -> None:
    """Keep the branch that follows where it is.

    Two branches on one predicate, the same lanes' each time, are one to LLVM: it leads the lanes of
    the first around the second, into the middle of a loop if that is where it stands. Lanes then no
    longer meet between them, where a barrier may be. Nobody may copy what is convergent, and this,
    which lets every kind of instruction pass, becomes none.
    """
    emit.intrinsic("llvm.amdgcn.sched.barrier", [emit.constant(emit.integer(32), 0x7FF)])
