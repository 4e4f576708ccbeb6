"""Write formulas over whole tiles with Python's operators.

A pass that replaces one op by a formula (a polynomial, a rounding done in integers) should read as
the formula. `Lanes` wraps a scalar, a tile or a vector of ints or floats; each operator builds one
`arith` or `math` op on the whole of it at the current insertion point and location. Python numbers
become constants of the other operand's type. No op but those of `approximate` carries fast-math
flags, so that what is written is what is computed.

Floats compare ordered, but for `ne`. Integers are signless: what depends on the sign says so
(`shr_s`, `shr_u`, `ult`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from mlir import ir

from tiledsl.dialects.types import element_of, like

Number = int | float
_FLOAT_PREDICATES = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13}
_INT_PREDICATES = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "ult": 6, "ule": 7}


def scalar_type(name: str, context: ir.Context) -> ir.Type:
    """Return the scalar type of that name, as "f32", "i64" or "f8E5M2"."""
    key = (name, context)
    if key not in _SCALARS:
        _SCALARS[key] = ir.Type.parse(name, context)
    return _SCALARS[key]


_SCALARS: dict[tuple[str, ir.Context], ir.Type] = {}


def element(type_: ir.Type) -> ir.Type:
    """Return the element type of a tile or a vector; a scalar's is itself."""
    return type_.element_type if isinstance(type_, ir.VectorType) else element_of(type_)


def with_element(type_: ir.Type, scalar: ir.Type) -> ir.Type:
    """Return `type_` with another element type: same shape, same layout."""
    if isinstance(type_, ir.VectorType):
        return cast("Any", ir.VectorType).get(type_.shape, scalar)
    return like(type_, scalar)


def constant(type_: ir.Type, number: Number) -> ir.Value:
    """Build a constant of `type_`, every element being `number`; integers wrap to the width."""
    scalar = element(type_)
    if isinstance(scalar, ir.IntegerType):
        width = scalar.width
        wrapped = int(number) & ((1 << width) - 1)
        if width > 1 and wrapped >> (width - 1):
            wrapped -= 1 << width
        attribute: ir.Attribute = ir.IntegerAttr.get(scalar, wrapped)
    else:
        attribute = ir.FloatAttr.get(scalar, float(number))
    if scalar != type_:
        attribute = ir.DenseElementsAttr.get_splat(type_, attribute)
    return _build("arith.constant", [], type_, {"value": attribute})


# The bindings' stubs leave the attributes' types open.
_create = cast("Any", ir.Operation).create


def _build(
    name: str,
    operands: Sequence[ir.Value],
    result: ir.Type,
    attributes: dict[str, ir.Attribute] | None = None,
) -> ir.Value:
    # The generic builder: a third of the time of the op's own Python class.
    made = _create(name, results=[result], operands=operands, attributes=attributes or {})
    return made.results[0]


class Lanes:
    """A scalar, tile or vector under arithmetic; see the module's docstring."""

    __slots__ = ("value",)

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    @property
    def type(self) -> ir.Type:
        """The MLIR type of the whole."""
        return self.value.type

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats."""
        return isinstance(element(self.type), ir.FloatType)

    def constant(self, number: Number) -> Lanes:
        """Return a constant of this one's type."""
        return Lanes(constant(self.type, number))

    def _lift(self, other: Lanes | Number) -> ir.Value:
        return other.value if isinstance(other, Lanes) else constant(self.type, other)

    def _binary(self, name: str, other: Lanes | Number, swapped: bool = False) -> Lanes:
        pair = [self.value, self._lift(other)]
        return Lanes(_build(name, pair[::-1] if swapped else pair, self.type))

    def _arithmetic(self, name: str, other: Lanes | Number, swapped: bool = False) -> Lanes:
        return self._binary(f"arith.{name}{'f' if self.is_float else 'i'}", other, swapped)

    def __add__(self, other: Lanes | Number) -> Lanes:
        return self._arithmetic("add", other)

    def __radd__(self, other: Number) -> Lanes:
        return self._arithmetic("add", other, swapped=True)

    def __sub__(self, other: Lanes | Number) -> Lanes:
        return self._arithmetic("sub", other)

    def __rsub__(self, other: Number) -> Lanes:
        return self._arithmetic("sub", other, swapped=True)

    def __mul__(self, other: Lanes | Number) -> Lanes:
        return self._arithmetic("mul", other)

    def __rmul__(self, other: Number) -> Lanes:
        return self._arithmetic("mul", other, swapped=True)

    def __truediv__(self, other: Lanes | Number) -> Lanes:
        return self._binary("arith.divf", other)

    def __rtruediv__(self, other: Number) -> Lanes:
        return self._binary("arith.divf", other, swapped=True)

    def __neg__(self) -> Lanes:
        return Lanes(_build("arith.negf", [self.value], self.type)) if self.is_float else 0 - self

    def __and__(self, other: Lanes | Number) -> Lanes:
        return self._binary("arith.andi", other)

    def __or__(self, other: Lanes | Number) -> Lanes:
        return self._binary("arith.ori", other)

    def __xor__(self, other: Lanes | Number) -> Lanes:
        return self._binary("arith.xori", other)

    def __lshift__(self, count: Lanes | Number) -> Lanes:
        return self._binary("arith.shli", count)

    def shr_s(self, count: Lanes | Number) -> Lanes:
        """Shift right, copies of the sign bit coming in."""
        return self._binary("arith.shrsi", count)

    def shr_u(self, count: Lanes | Number) -> Lanes:
        """Shift right, zeros coming in."""
        return self._binary("arith.shrui", count)

    def min_s(self, other: Lanes | Number) -> Lanes:
        """Return the smaller signed integer."""
        return self._binary("arith.minsi", other)

    def max_s(self, other: Lanes | Number) -> Lanes:
        """Return the larger signed integer."""
        return self._binary("arith.maxsi", other)

    def _compare(self, predicate: str, other: Lanes | Number) -> Lanes:
        context = self.type.context
        name, table = ("f", _FLOAT_PREDICATES) if self.is_float else ("i", _INT_PREDICATES)
        i64 = scalar_type("i64", context)
        attribute = ir.IntegerAttr.get(i64, table[predicate])
        result = with_element(self.type, scalar_type("i1", context))
        operands = [self.value, self._lift(other)]
        return Lanes(_build(f"arith.cmp{name}", operands, result, {"predicate": attribute}))

    def lt(self, other: Lanes | Number) -> Lanes:
        """Return where this is less (ordered, signed)."""
        return self._compare("lt", other)

    def le(self, other: Lanes | Number) -> Lanes:
        """Return where this is at most `other` (ordered, signed)."""
        return self._compare("le", other)

    def gt(self, other: Lanes | Number) -> Lanes:
        """Return where this is greater (ordered, signed)."""
        return self._compare("gt", other)

    def ge(self, other: Lanes | Number) -> Lanes:
        """Return where this is at least `other` (ordered, signed)."""
        return self._compare("ge", other)

    def eq(self, other: Lanes | Number) -> Lanes:
        """Return where the two are equal."""
        return self._compare("eq", other)

    def ne(self, other: Lanes | Number) -> Lanes:
        """Return where the two differ, or either is NaN."""
        return self._compare("ne", other)

    def ult(self, other: Lanes | Number) -> Lanes:
        """Return where this is less as an unsigned integer."""
        return self._compare("ult", other)

    def convert(self, op: str, to: str) -> Lanes:
        """Apply a conversion op of `arith` or `tile`, as `convert("arith.sitofp", "f32")`."""
        result = with_element(self.type, scalar_type(to, self.type.context))
        return Lanes(_build(op, [self.value], result))

    def narrowed_to(self, to: str) -> Lanes:
        """Return the low bits as the integer type `to`, or this where it is of that type."""
        return self if str(element(self.type)) == to else self.convert("arith.trunci", to)

    def bits(self) -> Lanes:
        """Return the float's bits as an integer of its width."""
        scalar = element(self.type)
        assert isinstance(scalar, ir.FloatType)
        return self.bitcast(f"i{scalar.width}")

    def bitcast(self, to: str) -> Lanes:
        """Return the same bits as the type `to` of equal width."""
        # `tile.bitcast` is a tile level op; vectors only exist below it.
        vector = isinstance(self.type, ir.VectorType)
        return self.convert("arith.bitcast" if vector else "tile.bitcast", to)

    def unary(self, op: str) -> Lanes:
        """Apply an op from this type to itself, as `unary("math.absf")`."""
        return Lanes(_build(op, [self.value], self.type))

    def approximate(self, op: str) -> Lanes:
        """Apply an op as `unary` does, with the flag `afn`: it may take subnormals for zero."""
        flags = ir.Attribute.parse("#arith.fastmath<afn>", self.type.context)
        return Lanes(_build(op, [self.value], self.type, {"fastmath": flags}))

    def binary(self, op: str, other: Lanes | Number) -> Lanes:
        """Apply an op from two of this type to it, as `binary("arith.minnumf", 1.0)`."""
        return self._binary(op, other)


def fma(a: Lanes, b: Lanes | Number, c: Lanes | Number) -> Lanes:
    """Return a * b + c rounded once."""
    operands = [a.value, a._lift(b), a._lift(c)]  # pyright: ignore[reportPrivateUsage]
    return Lanes(_build("math.fma", operands, a.type))


def select(condition: Lanes, yes: Lanes | Number, no: Lanes | Number) -> Lanes:
    """Return `yes` where the condition holds, else `no`; at least one of them is `Lanes`."""
    model = yes if isinstance(yes, Lanes) else no
    assert isinstance(model, Lanes), "select needs a type"
    operands = [condition.value, *(model._lift(v) for v in (yes, no))]  # pyright: ignore[reportPrivateUsage]
    return Lanes(_build("arith.select", operands, model.type))


def polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """Return c0 + c1 x + c2 x^2 + ... by Horner's rule, one fma a step."""
    *rest, last = coefficients
    total: Lanes | Number = last
    for c in reversed(rest):
        total = fma(x, total, c)
    assert isinstance(total, Lanes), "a polynomial has at least two coefficients"
    return total
