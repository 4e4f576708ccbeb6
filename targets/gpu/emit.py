"""Small words for building one thread's code: constants, vectors of registers, packed words.

Each function builds ops at the current insertion point and location and returns their value. A
*vector* is a builtin vector of a thread's registers, always of rank 1 and never empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from mlir import ir
from mlir.dialects import arith, llvm, vector

Indices = Sequence[int] | npt.NDArray[np.int64]

POISON = -1
"""An index of `shuffle` whose element may be anything."""


def module_block() -> ir.Block:
    """Return the body of the module that the insertion point is in."""
    op: Any = ir.InsertionPoint.current.block.owner
    while op.operation.name != "builtin.module":
        op = op.operation.parent
    return op.operation.regions[0].blocks[0]


# Types.


@cache
def integer(bits: int) -> ir.IntegerType:
    """Return the signless integer type of that width."""
    return ir.IntegerType.get_signless(bits)


@cache
def vector_of(registers: int, element: ir.Type) -> ir.VectorType:
    """Return the type of that many registers."""
    made: Any = ir.VectorType
    return made.get([registers], element)


@cache
def pointer_type(space: int) -> ir.Type:
    """Return LLVM's pointer in an address space: 1 global, 3 shared, 0 generic."""
    return ir.Type.parse(f"!llvm.ptr<{space}>" if space else "!llvm.ptr")


def is_vector(type_: ir.Type) -> bool:
    """Return whether it is a vector."""
    return isinstance(type_, ir.VectorType)


def scalar_of(type_: ir.Type) -> ir.Type:
    """Return a vector's element type; a scalar's is itself."""
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


def registers_of(value: ir.Value) -> int:
    """Return how many registers a vector has."""
    return ir.VectorType(value.type).shape[0]


def resized(type_: ir.Type, element: ir.Type) -> ir.Type:
    """Return `type_` with another element type; scalars give `element`."""
    if isinstance(type_, ir.VectorType):
        return vector_of(type_.shape[0], element)
    return element


@cache
def width_of(type_: ir.Type) -> int:
    """Return the bits of a scalar or of a vector's element; a pointer has 64 (32 if shared)."""
    element = scalar_of(type_)
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return element.width
    return 32 if "<3>" in str(element) else 64


def is_pointer_type(type_: ir.Type) -> bool:
    """Return whether it is LLVM's pointer or a vector of them."""
    return not isinstance(scalar_of(type_), ir.IntegerType | ir.FloatType)


# Constants.


def constant(type_: ir.Type, value: float) -> ir.Value:
    """Return a number as a scalar or in every element of a vector."""
    element = scalar_of(type_)
    if isinstance(element, ir.IntegerType):
        attribute: ir.Attribute = ir.IntegerAttr.get(element, _wrapped(int(value), element.width))
    else:
        attribute = ir.FloatAttr.get(element, value)
    if isinstance(type_, ir.VectorType):
        attribute = ir.DenseElementsAttr.get_splat(type_, attribute)
    return arith.constant(type_, attribute)


def _wrapped(value: int, width: int) -> int:
    """Return the signed reading of the low bits; a bool stays 0 or 1."""
    value &= (1 << width) - 1
    return value - (1 << width) if width > 1 and value >> (width - 1) else value


def i32(value: int) -> ir.Value:
    """Return an i32."""
    return constant(integer(32), value)


def constants(values: Iterable[int], bits: int = 32) -> ir.Value:
    """Return a vector of different integers."""
    array = np.array(list(values), dtype=f"int{bits}")
    type_ = vector_of(len(array), integer(bits))
    made: Any = ir.DenseElementsAttr
    return arith.constant(type_, made.get(array, type=type_))


def zero(type_: ir.Type) -> ir.Value:
    """Return 0, 0.0 or a null pointer, as a scalar or vector."""
    if is_pointer_type(type_):
        return llvm.mlir_zero(type_)
    return constant(type_, 0)


# Vectors.


def splat(scalar: ir.Value, registers: int) -> ir.Value:
    """Return a scalar in every register."""
    return vector.broadcast(vector_of(registers, scalar.type), scalar)


def splatted(value: ir.Value) -> ir.Value | None:
    """Return the scalar that is in every register of a vector, None if none is known to be."""
    op = defining(value)
    if op is None or op.name != "vector.broadcast" or is_vector(op.operands[0].type):
        return None
    return op.operands[0]


def defining(value: ir.Value) -> Any:
    """Return the op that a value is the result of, None of an argument."""
    owner: Any = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def like(scalar: ir.Value, type_: ir.Type) -> ir.Value:
    """Return a scalar as `type_` has it: in every register of a vector, or as it is."""
    return splat(scalar, type_.shape[0]) if isinstance(type_, ir.VectorType) else scalar


def shuffle(first: ir.Value, indices: Indices, second: ir.Value | None = None) -> ir.Value:
    """Return the registers of `first` (and `second`, counted on) that `indices` name."""
    listed = [int(i) for i in indices]
    if listed == list(range(registers_of(first))):
        return first
    return vector.shuffle(first, first if second is None else second, listed)


def extract(value: ir.Value, index: int) -> ir.Value:
    """Return one register."""
    return vector.extract(value, [], [index])


def elements(value: ir.Value) -> list[ir.Value]:
    """Return all registers, or the scalar itself."""
    if not is_vector(value.type):
        return [value]
    if registers_of(value) == 1:
        return [extract(value, 0)]
    return list(cast("Sequence[ir.Value]", vector.to_elements(value)))


def from_elements(scalars: Sequence[ir.Value]) -> ir.Value:
    """Return scalars of one type as a vector."""
    return vector.from_elements(vector_of(len(scalars), scalars[0].type), list(scalars))


def part(value: ir.Value, start: int, count: int) -> ir.Value:
    """Return consecutive registers."""
    if count == registers_of(value):
        return value
    return vector.extract_strided_slice(
        vector_of(count, scalar_of(value.type)), value, [start], [count], [1]
    )


def concatenate(parts: Sequence[ir.Value]) -> ir.Value:
    """Return vectors one after another."""
    while len(parts) > 1:
        joined = [_append(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*joined, parts[-1]] if len(parts) % 2 else joined
    return parts[0]


def _append(first: ir.Value, second: ir.Value) -> ir.Value:
    """Return two vectors one after the other; `vector.shuffle` takes different sizes."""
    return vector.shuffle(first, second, list(range(registers_of(first) + registers_of(second))))


# Bits.


def bitcast(value: ir.Value, element: ir.Type) -> ir.Value:
    """Return the same bits as elements of the type `element`, of any width that divides evenly."""
    type_ = value.type
    if scalar_of(type_) == element:
        return value
    if is_pointer_type(type_):
        number = resized(type_, integer(width_of(type_)))
        return bitcast(llvm.ptrtoint(number, value), element)
    if is_pointer_type(element):
        number = bitcast(value, integer(width_of(element)))
        return llvm.inttoptr(resized(number.type, element), number)
    if not isinstance(type_, ir.VectorType):
        return arith.bitcast(element, value)
    count = type_.shape[0] * width_of(type_) // width_of(element)
    return vector.bitcast(vector_of(count, element), value)


def to_words(value: ir.Value) -> list[ir.Value]:
    """Return a vector's (or scalar's) bits as i32 words, first registers lowest; bools as bytes."""
    if not is_vector(value.type):
        value = splat(value, 1)
    if width_of(value.type) == 1:
        value = arith.extui(resized(value.type, integer(8)), value)
    if is_pointer_type(value.type):
        value = bitcast(value, integer(64))
    per_word = max(1, 32 // width_of(value.type))
    count = registers_of(value)
    if count % per_word:
        padded = -(-count // per_word) * per_word
        value = shuffle(value, [i if i < count else POISON for i in range(padded)])
    return elements(bitcast(value, integer(32)))


def from_words(words: Sequence[ir.Value], type_: ir.Type) -> ir.Value:
    """Return what `to_words` took apart, `type_` being the vector's (or scalar's) type."""
    element = scalar_of(type_)
    count = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
    whole = from_elements(words)
    if width_of(element) == 1:
        held = part(bitcast(whole, integer(8)), 0, count)
        result = arith.trunci(vector_of(count, integer(1)), held)
    else:
        result = bitcast(whole, element)
        result = part(result, 0, count)
    return result if is_vector(type_) else extract(result, 0)


# Integers and conditions.


def compare(predicate: str, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Return an integer comparison: "eq", "ne", "slt", "ult", ..."""
    return arith.cmpi(getattr(arith.CmpIPredicate, predicate), lhs, rhs)


def both(first: ir.Value | None, second: ir.Value | None) -> ir.Value | None:
    """Return the conjunction of two predicates, None being always true."""
    if first is None or second is None:
        return second if first is None else first
    return arith.andi(first, second)


def select(condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    """Return `yes` or `no`; a scalar condition decides for whole vectors."""
    return arith.select(condition, yes, no)


def intrinsic(
    name: str, arguments: Sequence[ir.Value], result: ir.Type | None = None, **options: Any
) -> ir.Value:
    """Call an LLVM intrinsic; without a result, what is returned is of no use."""
    called: Any = llvm.call_intrinsic(result, name, list(arguments), [], [], **options)
    return called


def range_below(count: int) -> ir.Attribute:
    """Return what tells LLVM that an i32 is at least 0 and below a number."""
    return ir.Attribute.parse(f"#llvm.constant_range<i32, 0, {count}>")


_DYNAMIC = -(2**31)
"""Stands in a list of indices for one that is an operand."""


def gep(base: ir.Value, offset: ir.Value | int, element: ir.Type) -> ir.Value:
    """Return a pointer (or a vector of them) moved by a number of elements."""
    if isinstance(offset, int):
        if offset == 0:
            return base
        if not _DYNAMIC < offset < -_DYNAMIC:
            offset = constant(integer(64), offset)
    static = offset if isinstance(offset, int) else _DYNAMIC
    dynamic = [] if isinstance(offset, int) else [offset]
    type_ = base.type
    if dynamic and not is_vector(type_):
        type_ = resized(dynamic[0].type, type_)
    indices = ir.DenseI32ArrayAttr.get([static])
    return llvm.getelementptr(type_, base, dynamic, indices, element, None)
