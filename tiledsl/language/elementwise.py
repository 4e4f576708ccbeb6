"""The operators: arithmetic, comparison, bits and shifts, with NumPy's values and JAX's types.

Each function takes any two operands (`operands.Operand`), brings them to one type and one shape,
and builds the op. Integers wrap. Bools add as `or`, multiply as `and`, order as 0 < 1 and do not
subtract. `/` of integers is float division; `//` and `%` round toward negative infinity. A shift by
the width or more gives 0, or the sign of a signed number shifted right. Pointers move by integers,
subtract to a number of elements and compare as addresses.
"""

from __future__ import annotations

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, bool_, float32, int32, int64, to_inexact, uint64, unwrap
from tiledsl.language import casts
from tiledsl.language.builder import current
from tiledsl.language.operands import (
    Operand,
    as_value,
    broadcast_values,
    is_number,
    operand_dtype,
    operand_pair,
    promote_values,
)
from tiledsl.language.value import Value, build, constant, describe, loading, upstream

# arith's numbering of comparison predicates, by the operator's sign.
_SIGNED = {"==": 0, "!=": 1, "<": 2, "<=": 3, ">": 4, ">=": 5}
_UNSIGNED = {"==": 0, "!=": 1, "<": 6, "<=": 7, ">": 8, ">=": 9}
_FLOAT = {"==": 1, ">": 2, ">=": 3, "<": 4, "<=": 5, "!=": 13}


def _pair(left: Operand, right: Operand, sign: str, kind: str = "numbers") -> tuple[Value, Value]:
    """Return two operands of one type and one shape, which are no pointers."""
    for operand in (left, right):
        if _is_pointer(operand):
            raise KernelError(
                f"expected operands of `{sign}` that are {kind}, found {describe(operand)}",
                hint=loading(operand),
            )
    return operand_pair(left, right, f"`{sign}`")


def _is_pointer(value: Operand) -> bool:
    value = unwrap(value)
    return isinstance(value, Value) and value.dtype.is_ptr()


def _reject(sign: str, value: Value, hint: str | None = None) -> KernelError:
    return KernelError(
        f"expected operands of `{sign}` that are numbers, found {describe(value)}", hint=hint
    )


def _arithmetic(sign: str, integer: str, floating: str, left: Operand, right: Operand) -> Value:
    a, b = _pair(left, right, sign)
    if a.dtype.is_floating():
        return upstream(floating, a, b, attributes={"fastmath": current().float_flags})
    return upstream(integer, a, b)


# --- arithmetic ----------------------------------------------------------------------------------


def add(left: Operand, right: Operand) -> Value:
    """Return left + right; a pointer moves by an integer."""
    if _is_pointer(left) or _is_pointer(right):
        pointer, offset = (left, right) if _is_pointer(left) else (right, left)
        if _is_pointer(offset):
            raise KernelError("expected a pointer and an integer, found the sum of two pointers")
        return move_pointer(pointer, offset, "+")
    return _arithmetic(
        "+", _or_if_bool("arith.addi", left, right, "arith.ori"), "arith.addf", left, right
    )


def sub(left: Operand, right: Operand) -> Value:
    """Return left - right; of two pointers, the number of elements between them."""
    if _is_pointer(left) and _is_pointer(right):
        return _pointer_distance(unwrap(left), unwrap(right))
    if _is_pointer(left):
        return move_pointer(left, _negated_offset(right), "-")
    if _is_pointer(right):
        raise KernelError(f"expected a pointer on the left of `-`, found {describe(left)}")
    if _both_bools(left, right):
        raise KernelError(
            "expected operands of `-` that are numbers, found bools",
            hint="a ^ b is true where they differ",
        )
    return _arithmetic("-", "arith.subi", "arith.subf", left, right)


def mul(left: Operand, right: Operand) -> Value:
    """Return left * right."""
    return _arithmetic(
        "*", _or_if_bool("arith.muli", left, right, "arith.andi"), "arith.mulf", left, right
    )


def _both_bools(left: Operand, right: Operand) -> bool:
    types = [
        operand_dtype(x) or (bool_ if isinstance(unwrap(x), bool) else int32) for x in (left, right)
    ]
    return types == [bool_, bool_]


def _or_if_bool(name: str, left: Operand, right: Operand, logical: str) -> str:
    """Return the name of an op for integers, or that of its meaning for bools."""
    return logical if _both_bools(left, right) else name


def truediv(left: Operand, right: Operand) -> Value:
    """Return left / right in the float type that JAX gives: integers divide in float32."""
    a, b = _pair(left, right, "/")
    dtype = to_inexact(a.dtype)
    a, b = casts.to(a, dtype), casts.to(b, dtype)
    return upstream("arith.divf", a, b, attributes={"fastmath": current().function_flags})


def floordiv(left: Operand, right: Operand) -> Value:
    """Return left // right, rounded toward negative infinity."""
    a, b = _division_pair(left, right, "//")
    if a.dtype.is_floating():
        return _float_divmod(a, b)[0]
    signed = a.dtype.is_int_signed()
    return build(tile.FloorDivOp, a, b, dtype=a.dtype, shape=a.shape, signed=signed)


def mod(left: Operand, right: Operand) -> Value:
    """Return left % right, with the sign of `right`."""
    a, b = _division_pair(left, right, "%")
    if a.dtype.is_floating():
        return _float_divmod(a, b)[1]
    signed = a.dtype.is_int_signed()
    return build(tile.FloorModOp, a, b, dtype=a.dtype, shape=a.shape, signed=signed)


def _division_pair(left: Operand, right: Operand, sign: str) -> tuple[Value, Value]:
    divisor = unwrap(right)
    if is_number(divisor) and divisor == 0 and not _has_float(left, right):
        raise KernelError(f"expected a divisor other than 0, found {describe(left)} {sign} 0")
    a, b = _pair(left, right, sign)
    if a.dtype.is_bool():
        raise _reject(sign, a, "convert them, as x.to(tile.int32)")
    return a, b


def _has_float(*operands: Operand) -> bool:
    types = [operand_dtype(x) for x in operands]
    return any(t is not None and t.is_floating() for t in types) or any(
        isinstance(unwrap(x), float) for x in operands
    )


def _float_divmod(a: Value, b: Value) -> tuple[Value, Value]:
    """Return NumPy's floor quotient and remainder of floats, step by step as its npy_divmod.

    Those of 8 and 16 bits are computed in float32 and rounded once, as NumPy does too.
    """
    if a.dtype.primitive_bitwidth < 32:
        wide = _float_divmod(casts.to(a, float32), casts.to(b, float32))
        return casts.to(wide[0], a.dtype), casts.to(wide[1], a.dtype)
    zero, one, half = (constant(v, a.dtype, a.shape) for v in (0.0, 1.0, 0.5))
    ratio = upstream("arith.divf", a, b)
    # The remainder of truncated division is exact; it moves to the divisor's sign.
    rest = upstream("arith.remf", a, b)
    moves = bit_and(not_equal(rest, zero), not_equal(less(b, zero), less(rest, zero)))
    remainder = select(moves, upstream("arith.addf", rest, b), rest)
    remainder = select(equal(rest, zero), upstream("math.copysign", zero, b), remainder)
    # So (a - rest) / b is an integer but for rounding.
    near = upstream("arith.divf", upstream("arith.subf", a, rest), b)
    near = select(moves, upstream("arith.subf", near, one), near)
    below = upstream("math.floor", near)
    rounds_up = greater(upstream("arith.subf", near, below), half)
    quotient = select(rounds_up, upstream("arith.addf", below, one), below)
    quotient = select(equal(near, zero), upstream("math.copysign", zero, ratio), quotient)
    by_zero = equal(b, zero)
    return select(by_zero, ratio, quotient), select(by_zero, rest, remainder)


def power(base: Operand, exponent: Operand) -> Value:
    """Return base ** exponent for an integer exponent known at compile time, or 0.5.

    Raises:
        KernelError: The exponent is another.
    """
    exponent = unwrap(exponent)
    hint = "x ** y of positive floats is tile.exp2(y * tile.log2(x))"
    if not is_number(exponent) or isinstance(exponent, bool) or not isinstance(base, Value):
        raise KernelError(
            "expected `**` with a run-time base and an exponent known at compile time, found "
            f"{describe(base)} ** {describe(exponent)}",
            hint=hint,
        )
    if base.dtype.is_ptr():
        raise _reject("**", base)
    if base.dtype.is_floating() and exponent == 0.5:
        return upstream("math.sqrt", base, attributes={"fastmath": current().function_flags})
    if not float(exponent).is_integer() or abs(exponent) > 64:
        raise KernelError(
            f"expected an integer exponent of at most 64, found {exponent}", hint=hint
        )
    if exponent < 0 and not base.dtype.is_floating():
        raise KernelError(
            f"expected an exponent of at least 0 for {describe(base)}, found {exponent}",
            hint="convert the base to a float type first",
        )
    if isinstance(exponent, float) or base.dtype.is_bool():
        base = promote_values(base, exponent, "`**`")[0]
    result = _repeated_product(base, abs(int(exponent)))
    return truediv(1, result) if exponent < 0 else result


def _repeated_product(base: Value, exponent: int) -> Value:
    result: Value | None = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else mul(result, square)
        exponent >>= 1
        if exponent:
            square = mul(square, square)
    return constant(1, base.dtype, base.shape) if result is None else result


def negative(value: Value) -> Value:
    """Return -value; integers wrap."""
    if value.dtype.is_floating():
        return upstream("arith.negf", value)
    if value.dtype.is_bool() or value.dtype.is_ptr():
        hint = "~x inverts a bool" if value.dtype.is_bool() else loading(value)
        raise KernelError(f"expected a number after `-`, found {describe(value)}", hint=hint)
    return upstream("arith.subi", constant(0, value.dtype, value.shape), value)


def positive(value: Value) -> Value:
    """Return +value, which is value."""
    if value.dtype.is_bool() or value.dtype.is_ptr():
        hint = loading(value)
        raise KernelError(f"expected a number after `+`, found {describe(value)}", hint=hint)
    return value


def absolute(value: Value) -> Value:
    """Return the magnitude; that of the most negative integer is itself, as it wraps."""
    if value.dtype.is_ptr():
        raise KernelError(f"expected a number, found {describe(value)}", hint=loading(value))
    if value.dtype.is_floating():
        return upstream("math.absf", value)
    return upstream("math.absi", value) if value.dtype.is_int_signed() else value


# --- bits ----------------------------------------------------------------------------------------


def _bitwise(sign: str, name: str, left: Operand, right: Operand) -> Value:
    a, b = _pair(left, right, sign, "integers or bools")
    if a.dtype.is_floating():
        raise KernelError(
            f"expected operands of `{sign}` that are integers or bools, found {describe(a)}"
        )
    return upstream(name, a, b)


def bit_and(left: Operand, right: Operand) -> Value:
    """Return left & right."""
    return _bitwise("&", "arith.andi", left, right)


def bit_or(left: Operand, right: Operand) -> Value:
    """Return left | right."""
    return _bitwise("|", "arith.ori", left, right)


def bit_xor(left: Operand, right: Operand) -> Value:
    """Return left ^ right."""
    return _bitwise("^", "arith.xori", left, right)


def invert(value: Value) -> Value:
    """Return ~value: each bit inverted, or a bool's negation."""
    if value.dtype.is_floating() or value.dtype.is_ptr():
        raise KernelError(f"expected an integer or bool after `~`, found {describe(value)}")
    ones = (
        True if value.dtype.is_bool() else value.dtype.highest if value.dtype.kind == "uint" else -1
    )
    return upstream("arith.xori", value, constant(ones, value.dtype, value.shape))


def _shift_pair(left: Operand, right: Operand, sign: str) -> tuple[Value, Value, int | None]:
    """Return both operands, and the count where it is known at compile time."""
    a, b = _pair(left, right, sign, "integers")
    if not a.dtype.is_int():
        hint = "convert them, as x.to(tile.int32)" if a.dtype.is_bool() else None
        raise KernelError(
            f"expected operands of `{sign}` that are integers, found {describe(a)}", hint=hint
        )
    count = unwrap(right)
    if not is_number(count):
        return a, b, None
    if count < 0:
        raise KernelError(f"expected a shift by at least 0, found {count}")
    return a, b, int(count)


def shift_left(left: Operand, right: Operand) -> Value:
    """Return left << right; 0 where `right` is the width or more (or negative)."""
    a, b, count = _shift_pair(left, right, "<<")
    return _zero_beyond("arith.shli", a, b, count)


def shift_right(left: Operand, right: Operand) -> Value:
    """Return left >> right: 0, or the sign if signed, where `right` is the width or more."""
    a, b, count = _shift_pair(left, right, ">>")
    if not a.dtype.is_int_signed():
        return _zero_beyond("arith.shrui", a, b, count)
    last = a.dtype.primitive_bitwidth - 1
    if count is None or count > last:
        b = _at_most(b, last) if count is None else constant(last, b.dtype, b.shape)
    return upstream("arith.shrsi", a, b)


def _zero_beyond(name: str, a: Value, b: Value, count: int | None) -> Value:
    """Return a shift of `a` by `b`, 0 where that is the width or more."""
    width = a.dtype.primitive_bitwidth
    if count is not None and count < width:
        return upstream(name, a, b)
    zero = constant(0, a.dtype, a.shape)
    if count is not None:
        return zero
    inside = casts.compare("arith.cmpi", _UNSIGNED["<"], b, constant(width, b.dtype, b.shape))
    return select(inside, upstream(name, a, _at_most(b, width - 1)), zero)


def _at_most(count: Value, last: int) -> Value:
    """Return a shift count, taken as unsigned, held to `last`."""
    return upstream("arith.minui", count, constant(last, count.dtype, count.shape))


# --- comparison ----------------------------------------------------------------------------------


def _compare(sign: str, left: Operand, right: Operand) -> Value:
    if _is_pointer(left) or _is_pointer(right):
        left, right = _address(left, right, sign), _address(right, left, sign)
    a, b = _pair(left, right, sign)
    if a.dtype.is_floating():
        return casts.compare("arith.cmpf", _FLOAT[sign], a, b)
    predicates = _SIGNED if a.dtype.is_int_signed() else _UNSIGNED
    return casts.compare("arith.cmpi", predicates[sign], a, b)


def _address(value: Operand, other: Operand, sign: str) -> Operand:
    """Return a pointer as an unsigned integer; 0 stands for the null pointer.

    Args:
        value: An operand of a comparison.
        other: The other operand, for the message.
        sign: The comparison.
    """
    value = unwrap(value)
    if isinstance(value, Value) and value.dtype.is_ptr():
        return casts.to(value, uint64)
    if is_number(value) and value == 0:
        return value
    raise KernelError(
        f"expected pointers on both sides of `{sign}`, found {describe(value)}", hint=loading(other)
    )


def equal(left: Operand, right: Operand) -> Value:
    """Return where left == right."""
    return _compare("==", left, right)


def not_equal(left: Operand, right: Operand) -> Value:
    """Return where left != right; NaN differs from everything."""
    return _compare("!=", left, right)


def less(left: Operand, right: Operand) -> Value:
    """Return where left < right."""
    return _compare("<", left, right)


def less_equal(left: Operand, right: Operand) -> Value:
    """Return where left <= right."""
    return _compare("<=", left, right)


def greater(left: Operand, right: Operand) -> Value:
    """Return where left > right."""
    return _compare(">", left, right)


def greater_equal(left: Operand, right: Operand) -> Value:
    """Return where left >= right."""
    return _compare(">=", left, right)


def select(condition: Value, if_true: Value, if_false: Value) -> Value:
    """Return if_true where `condition`, elsewhere if_false: three values of one shape."""
    return upstream("arith.select", condition, if_true, if_false, dtype=if_true.dtype)


def logical_not(value: Value) -> Value:
    """Return where `value` is zero or false, element by element."""
    return invert(casts.truth(value))


# --- pointers ------------------------------------------------------------------------------------


def move_pointer(pointer: Operand, offset: Operand, sign: str) -> Value:
    """Return a pointer, or a tile of them, moved by a number of elements.

    The offset is taken at its own width and signedness; it does not wrap at 32 bits in the address.
    """
    base = as_value(pointer)
    moved = as_value(offset)
    if not (moved.dtype.is_int() or moved.dtype.is_bool()):
        raise KernelError(
            f"expected an integer on a side of `{sign}` with a pointer, found {describe(moved)}"
        )
    moved = _offset(moved)
    base, moved = broadcast_values(base, moved, what=f"`{sign}`")
    return build(tile.AddPtrOp, base, moved, dtype=base.dtype, shape=base.shape)


def _offset(value: Value) -> Value:
    """Return an integer as the signed 32- or 64-bit one that `addptr` takes."""
    dtype: DType = value.dtype
    if dtype.primitive_bitwidth < 32:
        return casts.to(value, int32)
    if dtype.kind == "uint":
        return casts.to(value, int64)
    return value


def _negated_offset(offset: Operand) -> Operand:
    """Return -offset, wide enough that it does not wrap."""
    offset = unwrap(offset)
    if is_number(offset):
        return -offset
    value = as_value(offset)
    if not value.dtype.is_int():
        return value
    return negative(casts.to(value, int64))


def _pointer_distance(left: Value, right: Value) -> Value:
    if left.dtype is not right.dtype:
        raise KernelError(f"expected pointers of one type, found {left.dtype} and {right.dtype}")
    a, b = broadcast_values(casts.to(left, int64), casts.to(right, int64), what="`-`")
    size = left.dtype.element_ty.itemsize
    return floordiv(upstream("arith.subi", a, b), size)
