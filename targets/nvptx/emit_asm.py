"""Write `ptx` ops as inline assembly: the last step before LLVM's own dialect.

LLVM sees volatile assembly that touches memory, so it neither reorders nor drops it. The result of
a predicated instruction begins as the value for a false predicate, which is tied to the register
that the instruction writes, so it needs no branch and no select.

Before: the `machine` level.
After: the same without `ptx` ops.

    %v = "ptx.load"(%p, %m, %zero) : (!llvm.ptr<1>, i1, vector<4xf32>) -> vector<4xf32>
becomes
    %w = llvm.inline_asm has_side_effects "@$9 ld.global.v4.b32 { $0, $1, $2, $3 }, [ $8 ];",
         "=r,=r,=r,=r,0,1,2,3,l,b" %z0, ..., %p, %m : ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects import ptx
from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import integer

_CONSTRAINT = {16: "h", 32: "r", 64: "l"}


def emit_asm(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for op in list(operations(module.operation)):
        write = _WRITERS.get(op.operation.name)
        if write is None:
            continue
        with ir.InsertionPoint(op), op.operation.location:
            result = write(op)
            if result is not None:
                op.operation.results[0].replace_all_uses_with(result)
            op.operation.erase()


# Values as PTX registers.


def _word_bits(type_: ir.Type) -> int:
    """Return the width of the registers that a value travels in."""
    registers = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
    width = emit.width_of(type_)
    return min(max(width, 32), width * registers) if width < 64 else 64


def _to_registers(value: ir.Value) -> list[ir.Value]:
    """Return a value's bits as integers of 16, 32 or 64 bits; a single byte in 16."""
    bits = _word_bits(value.type)
    whole = value if emit.is_vector(value.type) else emit.splat(value, 1)
    words = emit.elements(emit.bitcast(whole, integer(bits)))
    if bits == 8:
        words = [llvm.zext(integer(16), word) for word in words]
    return words


def _from_registers(words: Sequence[ir.Value], type_: ir.Type) -> ir.Value:
    """Return what `_to_registers` took apart."""
    bits = _word_bits(type_)
    if bits == 8:
        words = [
            llvm.trunc(integer(8), word, ir.Attribute.parse("#llvm.overflow<none>"))
            for word in words
        ]
    whole = emit.bitcast(emit.from_elements(words), emit.scalar_of(type_))
    return whole if emit.is_vector(type_) else emit.extract(whole, 0)


class _Assembly:
    """One instruction in the making: operands get numbers as they are added, outputs first."""

    def __init__(self, outputs: Sequence[ir.Value] = (), types: Sequence[ir.Type] = ()) -> None:
        """Begin with outputs, each with the value it has before (or, by type, with none)."""
        self._types = [value.type for value in outputs] or list(types)
        self.outputs = [f"${i}" for i in range(len(self._types))]
        self._constraints = [f"={_CONSTRAINT[emit.width_of(t)]}" for t in self._types]
        self._operands = list(outputs)
        self._constraints += [str(i) for i in range(len(outputs))]

    def operand(self, value: ir.Value, constraint: str | None = None) -> str:
        """Add an operand; return how the text names it."""
        number = len(self._types) + len(self._operands)
        self._operands.append(value)
        self._constraints.append(constraint or _CONSTRAINT[emit.width_of(value.type)])
        return f"${number}"

    def guard(self, predicate: ir.Value | None) -> str:
        """Return the text that goes before a guarded instruction."""
        return "" if predicate is None else f"@{self.operand(predicate, 'b')} "

    def build(self, text: str) -> list[ir.Value]:
        """Build the op; return the outputs' values."""
        types = self._types
        result: ir.Type | None = None
        if len(types) == 1:
            result = types[0]
        elif types:
            result = ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
        made: Any = llvm.inline_asm(
            result,
            self._operands,
            text,
            ",".join(self._constraints),
            has_side_effects=True,
        )
        if len(types) < 2:
            return [made] if types else []
        return [
            llvm.extractvalue(type_, made, ir.DenseI64ArrayAttr.get([i]))
            for i, type_ in enumerate(types)
        ]


def _vector(names: Sequence[str]) -> tuple[str, str]:
    """Return the suffix and the braces of an access of several registers."""
    if len(names) == 1:
        return "", names[0]
    return f".v{len(names)}", "{ " + ", ".join(names) + " }"


# Instructions.


def _load(op: ptx.LoadOp) -> ir.Value:
    type_ = op.value.type
    bits = _word_bits(type_)
    if op.other is None:
        count = type_.shape[0] * emit.width_of(type_) // bits
        assembly = _Assembly(types=[integer(max(16, bits))] * count)
    else:
        assembly = _Assembly(_to_registers(op.other))
    suffix, names = _vector(assembly.outputs)
    address = assembly.operand(op.pointer)
    order = ".volatile" if op.volatile else ""
    cache = f".{op.cache}" if op.cache and not op.volatile else ""
    eviction = f".L1::{op.eviction}" if op.eviction and not (op.volatile or cache) else ""
    text = f"ld{order}.global{cache}{eviction}{suffix}.b{bits} {names}, [ {address} ];"
    return _from_registers(assembly.build(assembly.guard(op.predicate) + text), type_)


def _store(op: ptx.StoreOp) -> None:
    assembly = _Assembly()
    words = [assembly.operand(word) for word in _to_registers(op.value)]
    suffix, names = _vector(words)
    address = assembly.operand(op.pointer)
    cache = f".{op.cache}" if op.cache else ""
    eviction = f".L1::{op.eviction}" if op.eviction and not cache else ""
    bits = _word_bits(op.value.type)
    text = f"st.global{cache}{eviction}{suffix}.b{bits} [ {address} ], {names};"
    assembly.build(assembly.guard(op.predicate) + text)


def _kind(kind: str, type_: ir.Type) -> str:
    """Return PTX's operation and type, as "add.noftz.f16"."""
    bits = emit.width_of(type_)
    if kind == "fadd":
        # Halves have no add that flushes, and say so.
        return f"add.noftz.{type_}" if bits == 16 else f"add.f{bits}"
    if kind in ("max", "min"):
        return f"{kind}.s{bits}"
    if kind in ("umax", "umin"):
        return f"{kind[1:]}.u{bits}"
    if kind == "add":
        return f"add.u{bits}"
    operation = {"xchg": "exch"}.get(kind, kind)
    return f"{operation}.b{bits}"


def _atom(op: ptx.AtomOp) -> ir.Value:
    type_ = op.value.type
    assembly = _Assembly(_to_registers(emit.zero(type_)))
    address = assembly.operand(op.pointer)
    (value,) = (assembly.operand(word) for word in _to_registers(op.value))
    text = (
        f"atom.{op.sem}.{_scope(op)}.global.{_kind(op.kind, type_)} "
        f"{assembly.outputs[0]}, [ {address} ], {value};"
    )
    return _from_registers(assembly.build(assembly.guard(op.predicate) + text), type_)


def _red(op: ptx.RedOp) -> None:
    assembly = _Assembly()
    address = assembly.operand(op.pointer)
    (value,) = (assembly.operand(word) for word in _to_registers(op.value))
    kind = _kind(op.kind, op.value.type)
    text = f"red.{op.sem}.{_scope(op)}.global.{kind} [ {address} ], {value};"
    assembly.build(assembly.guard(op.predicate) + text)


def _cas(op: ptx.CasOp) -> ir.Value:
    type_ = op.value.type
    assembly = _Assembly(_to_registers(emit.zero(type_)))
    address = assembly.operand(op.pointer)
    compare, value = assembly.operand(op.compare), assembly.operand(op.value)
    text = (
        f"atom.{op.sem}.{_scope(op)}.global.cas.b{emit.width_of(type_)} "
        f"{assembly.outputs[0]}, [ {address} ], {compare}, {value};"
    )
    return _from_registers(assembly.build(assembly.guard(op.predicate) + text), type_)


def _scope(op: Any) -> str:
    return str(op.scope)


_WRITERS: dict[str, Callable[[Any], ir.Value | None]] = {
    "ptx.load": _load,
    "ptx.store": _store,
    "ptx.atom": _atom,
    "ptx.red": _red,
    "ptx.cas": _cas,
}
