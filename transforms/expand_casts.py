"""Do the conversions of floats that a target lacks in integer arithmetic on whole tiles.

Rounding is to nearest even, once: f64 goes to f16, bf16 and fp8 in one step. A value too large for
fp8 becomes the largest finite one, infinities included (also of f8E5M2, which has infinities: as
PTX's `satfinite`); one too large for f16 or bf16 becomes infinite. NaN stays NaN. To an integer:
toward zero, saturated, NaN gives 0.

Before: any valid module at the tile level.
After: a float to float conversion among f16, bf16, f32 and f64 is `arith.extf` or `arith.truncf`
and its pair of types is in `native` (f32 with f64 is native everywhere); a conversion with fp8 on a
side, or to an integer, is a `tile.cast` whose pair is in `native`. All others are integer
arithmetic, on the bits of the whole tile.

    %y = "tile.cast"(%x) : (tensor<64xf32>) -> tensor<64xbf16>
becomes, where ("f32", "bf16") is not native,
    %b = "tile.bitcast"(%x) : (tensor<64xf32>) -> tensor<64xi32>
    ...
    %y = "tile.bitcast"(%h) : (tensor<64xi16>) -> tensor<64xbf16>
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.lanes import Lanes, element, select

Conversions = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Format:
    """How a float type lays out its bits.

    Attributes:
        name: The type's name.
        width: Its bits.
        mantissa: Stored bits of the significand.
        bias: Of the exponent.
        largest: The largest finite value.
        nan: A quiet NaN's bits.
        infinite: Whether what is too large becomes infinite, not the largest finite value.
    """

    name: str
    width: int
    mantissa: int
    bias: int
    largest: float
    nan: int
    infinite: bool

    @property
    def integer(self) -> str:
        """The integer type of its width."""
        return f"i{self.width}"


FORMATS = {
    format_.name: format_
    for format_ in (
        Format("f64", 64, 52, 1023, float.fromhex("0x1.fffffffffffffp1023"), 0x7FF8 << 48, True),
        Format("f32", 32, 23, 127, float.fromhex("0x1.fffffep127"), 0x7FC00000, True),
        Format("bf16", 16, 7, 127, float.fromhex("0x1.fep127"), 0x7FC0, True),
        Format("f16", 16, 10, 15, 65504.0, 0x7E00, True),
        Format("f8E5M2", 8, 2, 15, 57344.0, 0x7E, False),
        Format("f8E4M3FN", 8, 3, 7, 448.0, 0x7F, False),
    )
}
_EVERYWHERE: Conversions = frozenset({("f32", "f64"), ("f64", "f32")})
_CONVERTING = ("tile.cast", "arith.extf", "arith.truncf")


def expand_casts(module: ir.Module, native: Conversions = frozenset()) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: What to change.
        native: Pairs of types (source, result) that the target converts as described, an unsigned
            integer being named "u32".
    """
    native = native | _EVERYWHERE
    for op in list(operations(module.operation)):
        if op.operation.name not in _CONVERTING:
            continue
        source, target = Lanes(op.operation.operands[0]), _target_name(op)
        with ir.InsertionPoint(op), op.location:
            if target in FORMATS:
                result = convert(source, target, native)
            elif (_name(source), target) in native:
                continue
            else:
                result = _to_integer(source, target, native)
        op.operation.results[0].replace_all_uses_with(result.value)
        op.operation.erase()


def _name(lanes: Lanes) -> str:
    return str(element(lanes.type))


def _target_name(op: ir.OpView) -> str:
    name = str(element(op.operation.results[0].type))
    unsigned = isinstance(op, tile.CastOp) and not op.signed and name.startswith("i")
    return "u" + name[1:] if unsigned else name


def convert(x: Lanes, target: str, native: Conversions) -> Lanes:
    """Return the float `x` as the float type `target`, by native conversions where there are."""
    source = _name(x)
    if source == target:
        return x
    if (source, target) in native:
        return _native(x, target)
    if FORMATS[source].width < 32:
        # Small floats pass through f32, which holds all of them.
        if (source, target) == ("f8E5M2", "f16"):
            return (x.bits().convert("arith.extui", "i16") << 8).bitcast("f16")
        wide = _native(x, "f32") if (source, "f32") in native else _widened(x, native)
        return convert(wide, target, native)
    return _narrowed(x, FORMATS[source], FORMATS[target])


def _native(x: Lanes, target: str) -> Lanes:
    source, to = FORMATS[_name(x)], FORMATS[target]
    if min(source.width, to.width) == 8:
        return x.convert("tile.cast", target)
    # Of f16 and bf16 neither holds the other.
    if source.width == to.width:
        return _native(_native(x, "f32"), target)
    return x.convert("arith.extf" if to.width > source.width else "arith.truncf", target)


def _widened(x: Lanes, native: Conversions) -> Lanes:
    """Return a float of 8 or 16 bits as f32, exactly.

    The bits of exponent and significand, shifted into f32's places, are the value but for the
    exponent's bias; a multiplication mends that, for subnormals too.
    """
    source, wide = FORMATS[_name(x)], FORMATS["f32"]
    bits = x.bits()
    if source.name == "bf16":
        return (bits.convert("arith.extui", "i32") << 16).bitcast("f32")
    if source.name == "f8E5M2" and ("f16", "f32") in native:
        return convert(x, "f16", native).convert("arith.extf", "f32")
    bits = bits.convert("arith.extui", "i32")
    sign = (bits & (1 << (source.width - 1))) << (32 - source.width)
    magnitude = bits & ((1 << (source.width - 1)) - 1)
    shifted = magnitude << (wide.mantissa - source.mantissa)
    value = shifted.bitcast("f32") * 2.0 ** (wide.bias - source.bias)
    infinity = 0x7F800000
    if source.name == "f8E4M3FN":
        special = magnitude.eq(source.nan)
        value_bits = select(special, wide.nan, value.bits())
    else:
        all_ones = ((1 << (source.width - 1 - source.mantissa)) - 1) << source.mantissa
        special = magnitude.ge(all_ones)
        value_bits = select(special, shifted | infinity, value.bits())
    return (value_bits | sign).bitcast("f32")


def _narrowed(x: Lanes, source: Format, target: Format) -> Lanes:
    """Return an f32 or f64 as a smaller float, rounded to nearest even."""
    magnitude = x.unary("math.absf")
    is_nan = x.ne(x)
    same_range = source.bias == target.bias
    if not same_range:
        # f16's infinity is what 2^16 would be with one exponent more.
        most = 2.0 ** (target.bias + 1) if target.infinite else target.largest
        magnitude = select(magnitude.lt(most), magnitude, most)
    rounded = _rounded_normal(magnitude, source, target)
    if not same_range:
        tiny = magnitude.lt(2.0 ** (1 - target.bias))
        rounded = select(tiny, _rounded_subnormal(magnitude, source, target), rounded)
    rounded = select(is_nan, target.nan, rounded)
    sign = x.bits().shr_u(source.width - 1) << (target.width - 1)
    return (rounded | sign).convert("arith.trunci", target.integer).bitcast(target.name)


def _rounded_normal(magnitude: Lanes, source: Format, target: Format) -> Lanes:
    """Drop the low bits of the significand; a carry runs into the exponent, as it should."""
    dropped = source.mantissa - target.mantissa
    bits = magnitude.bits()
    last_kept = bits.shr_u(dropped) & 1
    kept = (bits + last_kept + ((1 << (dropped - 1)) - 1)).shr_u(dropped)
    rebias = (source.bias - target.bias) << target.mantissa
    return kept - rebias if rebias else kept


def _rounded_subnormal(magnitude: Lanes, source: Format, target: Format) -> Lanes:
    """Let an addition round: next to `magic` one unit is the target's smallest subnormal."""
    magic = 2.0 ** (1 - target.bias - target.mantissa + source.mantissa)
    return (magnitude + magic).bits() - magnitude.constant(magic).bits()


def _to_integer(x: Lanes, target: str, native: Conversions) -> Lanes:
    """Truncate toward zero, saturate, and give 0 for NaN."""
    if FORMATS[_name(x)].width < 32:
        x = convert(x, "f32", native)
    unsigned, width = target[0] == "u", int(target[1:])
    low = 0 if unsigned else -(1 << (width - 1))
    high = (1 << width) - 1 if unsigned else (1 << (width - 1)) - 1
    op, result = ("arith.fptoui" if unsigned else "arith.fptosi"), f"i{width}"
    if width < FORMATS[_name(x)].mantissa:
        # Both ends are floats: clamp, then convert to what every target converts to.
        x = select(x.ne(x), 0.0, x)
        x = select(x.gt(high), high, x)
        x = select(x.lt(low), low, x)
        return x.convert("arith.fptosi", "i32" if width < 32 else "i64").narrowed_to(result)
    # The high end is no float; the number above it is.
    above = float(high + 1)
    inside = x.lt(above) if unsigned else x.ge(low)
    inside = (x.ge(0.0) if unsigned else x.lt(above)) & inside
    value = select(inside, x, 0.0).convert(op, result)
    value = select(x.ge(above), high, value)
    return value if unsigned else select(x.lt(low), low, value)
