"""Instructions of every family with operands, for comparing the emulator with a GPU.

A case is a line of PTX as `evaluating.evaluate` takes it, and what its operands are drawn from.
Operands that PTX leaves undefined (a divisor of zero) are not drawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROWS = 4096
MANY_ROWS = 1 << 18
"""Of approximate functions of f32, of which each sees few of the 2**32 operands."""

_FLOAT: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
_FRACTION = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
_MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class Case:
    """One instruction.

    Attributes:
        family: What it belongs to.
        line: The PTX.
        operands: What each is drawn from: a type, or a name that `draw` knows.
        results: The NumPy type of each result.
        rows: How many rows of operands.
    """

    family: str
    line: str
    operands: tuple[str, ...]
    results: tuple[Any, ...]
    rows: int = ROWS

    @property
    def opcode(self) -> str:
        """The opcode: of several instructions the whole line."""
        return self.line.split()[0] if ";" not in self.line else self.line

    def drawn(self) -> list[Array]:
        """Return the operands, the same each time."""
        rng = np.random.default_rng(zlib.crc32(self.line.encode()))
        return [draw(name, self.rows, rng) for name in self.operands]


# --- operands ------------------------------------------------------------------------------------


def draw(name: str, rows: int, rng: np.random.Generator) -> Array:
    """Return operands of a kind: random bits, small numbers and special ones among them."""
    if name == "pred":
        return rng.integers(0, 2, rows).astype(np.bool_)
    if name == "amount":  # of a shift, a position, a length
        return rng.choice(np.array([*range(70), 128, 255, 256, 2**31, 2**32 - 1], np.uint32), rows)
    if name == "byte":
        return rng.integers(0, 256, rows).astype(np.uint32)
    if name.startswith("every"):  # of a register of 16 bits; of two of them, each with some other
        low = np.resize(np.arange(1 << 16, dtype=np.uint16), rows)
        return low if name == "every16" else low | rng.permutation(low).astype(np.uint32) << 16
    if name.startswith("nonzero "):
        values = draw(name.removeprefix("nonzero "), rows, rng)
        return np.where(values == 0, values.dtype.type(3), values)
    if name.endswith("x2") and name[:-2] in _FLOAT:
        halves = [_floats(name[:-2], rows, rng).view(np.uint16).astype(np.uint32) for _ in "ab"]
        return halves[0] | halves[1] << 16
    if name in _FLOAT:
        return _floats(name, rows, rng)
    return _integers(np.dtype(f"u{int(name[1:]) // 8}"), rows, rng)


def _integers(kind: np.dtype[Any], rows: int, rng: np.random.Generator) -> Array:
    bits = kind.itemsize * 8
    everything = rng.integers(0, (1 << bits) - 1, rows, kind, endpoint=True)
    edges = [0, 1, 2, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits) - 1, (1 << bits) - 2]
    small = rng.integers(0, 40, rows).astype(kind)
    special = rng.choice(np.array(edges, kind), rows)
    return np.choose(rng.choice(4, rows), [everything, everything, small, special])


def _floats(name: str, rows: int, rng: np.random.Generator) -> Array:
    """Random bits, everyday numbers, numbers near each other, special ones."""
    kind = np.dtype(_FLOAT[name])
    unsigned = np.dtype(f"u{kind.itemsize}")
    bits, fraction = kind.itemsize * 8, _FRACTION[name]
    infinite = ((1 << bits - 1 - fraction) - 1) << fraction
    one = (infinite >> fraction + 1) << fraction
    specials = [0, 1, (1 << fraction) - 1, 1 << fraction, one, one + 1, one - 1]
    specials += [
        (2 << fraction) - 1,
        one + (1 << fraction),
        infinite - 1,
        infinite,
        infinite + 1,
        infinite | 1 << fraction - 1,
        infinite | 5,
    ]
    signs = rng.integers(0, 2, rows).astype(unsigned) << unsigned.type(bits - 1)
    everything = rng.integers(0, (1 << bits) - 1, rows, unsigned, endpoint=True)
    everyday = (rng.normal(size=rows) * 8).astype(kind).view(unsigned)
    near = (one + rng.integers(-(4 << fraction), 4 << fraction, rows)).astype(unsigned) | signs
    special = rng.choice(np.array(specials, unsigned), rows) | signs
    missing = everything | unsigned.type(infinite)
    which = rng.choice(8, rows, p=[0.2, 0.1, 0.15, 0.15, 0.1, 0.05, 0.2, 0.05])
    columns = [everything, everything, everyday, everyday, near, near, special, missing]
    return np.choose(which, columns).view(kind)


# --- cases ---------------------------------------------------------------------------------------


def _register(kind: str) -> Any:
    bits = int("".join(c for c in kind.partition("x")[0] if c.isdigit()))
    return np.dtype(f"u{bits * (2 if kind.endswith('x2') else 1) // 8}")


def _line(opcode: str, count: int) -> str:
    return f"{opcode} " + ", ".join("{" + name + "}" for name in "dabcef"[: count + 1])


def _same(family: str, opcode: str, kind: str, count: int) -> Case:
    return Case(family, _line(opcode, count), (kind,) * count, (_register(kind),))


def _integer() -> Iterator[Case]:
    for kind in ("s16", "u16", "s32", "u32", "s64", "u64"):
        for stem in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            yield _same("integer", f"{stem}.{kind}", kind, 2)
        for stem in ("div", "rem"):
            line = _line(f"{stem}.{kind}", 2)
            yield Case("integer", line, (kind, f"nonzero {kind}"), (_register(kind),))
        for stem in ("mad.lo", "sad"):
            yield _same("integer", f"{stem}.{kind}", kind, 3)
        wide = {"16": np.uint32, "32": np.uint64}.get(kind[1:])
        if wide is not None:
            yield Case("integer", _line(f"mul.wide.{kind}", 2), (kind, kind), (wide,))
            operands = (kind, kind, f"u{2 * int(kind[1:])}")
            yield Case("integer", _line(f"mad.wide.{kind}", 3), operands, (wide,))
        if kind[1:] != "16":
            yield _same("integer", f"mad.hi.{kind}", kind, 3)
        if kind[0] == "s":
            yield _same("integer", f"abs.{kind}", kind, 1)
            yield _same("integer", f"neg.{kind}", kind, 1)
    for kind in ("s32", "u32"):
        for half in ("lo", "hi"):
            yield _same("integer", f"mul24.{half}.{kind}", kind, 2)
            yield _same("integer", f"mad24.{half}.{kind}", kind, 3)
    for opcode in ("add.sat.s32", "sub.sat.s32", "min.relu.s32", "max.relu.s32"):
        yield _same("integer", opcode, "s32", 2)
    for stem, kind in product(("add", "min", "max", "min.relu", "max.relu"), ("s16x2", "u16x2")):
        if not (stem.endswith("relu") and kind[0] == "u"):
            yield Case("integer", _line(f"{stem}.{kind}", 2), ("u32", "u32"), (np.uint32,))
    for a, b in product(("u32", "s32"), repeat=2):
        yield _same("integer", f"dp4a.{a}.{b}", "u32", 3)
        yield _same("integer", f"dp2a.lo.{a}.{b}", "u32", 3)
        yield _same("integer", f"dp2a.hi.{a}.{b}", "u32", 3)
    split = "mov.b64 {{%r1, %r2}}, {a}; mov.b64 {{%r3, %r4}}, {b}; "
    join = " mov.b64 {d}, {{%r5, %r6}}"
    for chain in (
        "add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4;",
        "sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4;",
        "mad.lo.cc.u32 %r5, %r1, %r3, %r2; madc.hi.u32 %r6, %r1, %r3, %r4;",
    ):
        yield Case("integer", split + chain + join, ("u64", "u64"), (np.uint64,))


def _bits() -> Iterator[Case]:
    for kind in ("b16", "b32", "b64"):
        for stem in ("and", "or", "xor"):
            yield _same("bits", f"{stem}.{kind}", kind, 2)
        for stem in ("not", "cnot"):
            yield _same("bits", f"{stem}.{kind}", kind, 1)
        yield Case("bits", _line(f"shl.{kind}", 2), (kind, "amount"), (_register(kind),))
        for letter in "us":
            one = letter + kind[1:]
            yield Case("bits", _line(f"shr.{one}", 2), (kind, "amount"), (_register(kind),))
    for side, rule in product("lr", ("wrap", "clamp")):
        operands = ("u32", "u32", "amount")
        yield Case("bits", _line(f"shf.{side}.{rule}.b32", 3), operands, (np.uint32,))
    for kind in ("u32", "s32", "u64", "s64"):
        operands = (kind, "byte", "byte")
        yield Case("bits", _line(f"bfe.{kind}", 3), operands, (_register(kind),))
        operands = (kind, "amount", "amount")
        yield Case(
            "bits", _line(f"bfe.{kind}", 3) + "; mov.b32 %r1, 0", operands, (_register(kind),)
        )
        for shift in ("", ".shiftamt"):
            yield Case("bits", _line(f"bfind{shift}.{kind}", 1), (kind,), (np.uint32,))
    for kind in ("b32", "b64"):
        operands = (kind, kind, "amount", "amount")
        yield Case("bits", _line(f"bfi.{kind}", 4), operands, (_register(kind),))
        yield _same("bits", f"brev.{kind}", kind, 1)
        for stem in ("popc", "clz"):
            yield Case("bits", _line(f"{stem}.{kind}", 1), (kind,), (np.uint32,))
    yield _same("bits", "prmt.b32", "b32", 3)
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield _same("bits", f"prmt.b32.{mode}", "b32", 3)
    for table in (0x1, 0x80, 0x96, 0xCA, 0xE8, 0x3C):
        yield Case("bits", _line("lop3.b32", 3) + f", {table}", ("b32",) * 3, (np.uint32,))
    for rule in ("clamp", "wrap"):
        yield Case("bits", _line(f"bmsk.{rule}.b32", 2), ("amount", "amount"), (np.uint32,))
        for kind in ("u32", "s32"):
            yield Case("bits", _line(f"szext.{rule}.{kind}", 2), (kind, "amount"), (np.uint32,))


def _comparisons() -> Iterator[Case]:
    plain = ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("s16", "u16", "s32", "u32", "s64", "u64"):
        for relation in plain:
            line = f"setp.{relation}.{kind} {{d}}, {{a}}, {{b}}"
            yield Case("comparison", line, (kind, kind), (np.bool_,))
    loose = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
    for kind in ("f16", "bf16", "f32", "f64"):
        for relation in (*plain, *loose):
            line = f"setp.{relation}.{kind} {{d}}, {{a}}, {{b}}"
            yield Case("comparison", line, (kind, kind), (np.bool_,))
    yield Case("comparison", _line("setp.lt.ftz.f32", 2), ("f32", "f32"), (np.bool_,))
    yield Case("comparison", _line("set.gt.u32.f32", 2), ("f32", "f32"), (np.uint32,))
    yield Case("comparison", _line("set.le.f32.s32", 2), ("s32", "s32"), (np.uint32,))
    yield Case("comparison", _line("selp.b64", 3), ("u64", "u64", "pred"), (np.uint64,))
    yield Case("comparison", _line("slct.u32.s32", 3), ("u32", "u32", "s32"), (np.uint32,))
    yield Case("comparison", _line("slct.u32.f32", 3), ("u32", "u32", "f32"), (np.uint32,))


def _float() -> Iterator[Case]:
    for kind in ("f32", "f64"):
        for mode in _MODES:
            for tail in ("", ".ftz", ".sat") if kind == "f32" else ("",):
                for stem in ("add", "sub", "mul"):
                    yield _same("float", f"{stem}.{mode}{tail}.{kind}", kind, 2)
                yield _same("float", f"fma.{mode}{tail}.{kind}", kind, 3)
            for tail in ("", ".ftz") if kind == "f32" else ("",):
                yield _same("float", f"div.{mode}{tail}.{kind}", kind, 2)
                yield _same("float", f"sqrt.{mode}{tail}.{kind}", kind, 1)
                yield _same("float", f"rcp.{mode}{tail}.{kind}", kind, 1)
        for stem in ("min", "max"):
            yield _same("float", f"{stem}.{kind}", kind, 2)
        for stem in ("abs", "neg"):
            yield _same("float", f"{stem}.{kind}", kind, 1)
        yield _same("float", f"copysign.{kind}", kind, 2)
        for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield Case("float", _line(f"testp.{test}.{kind}", 1), (kind,), (np.bool_,))
    for tail in ("NaN", "ftz", "ftz.NaN", "xorsign.abs", "NaN.xorsign.abs"):
        yield _same("float", f"min.{tail}.f32", "f32", 2)
        yield _same("float", f"max.{tail}.f32", "f32", 2)
    yield _same("float", "abs.ftz.f32", "f32", 1)
    yield _same("float", "neg.ftz.f32", "f32", 1)
    for kind in ("f16", "bf16", "f16x2", "bf16x2"):
        half = kind.startswith("f16")
        for stem in ("add", "sub", "mul"):
            for tail in ("", ".ftz", ".sat") if half else ("",):
                yield _same("float", f"{stem}.rn{tail}.{kind}", kind, 2)
        for tail in ("", ".ftz", ".sat", ".relu") if half else ("", ".relu"):
            yield _same("float", f"fma.rn{tail}.{kind}", kind, 3)
        for tail in ("", ".NaN", ".xorsign.abs", ".ftz") if half else ("", ".NaN", ".xorsign.abs"):
            yield _same("float", f"min{tail}.{kind}", kind, 2)
            yield _same("float", f"max{tail}.{kind}", kind, 2)
        for stem in ("abs", "neg"):
            yield _same("float", f"{stem}.{kind}", kind, 1)


def _conversions() -> Iterator[Case]:
    integers = [f"{letter}{bits}" for letter in "su" for bits in (16, 32, 64)]
    for source, to in product(integers, integers):
        if source != to:
            fits = int(to[1:]) > int(source[1:]) and (source[0], to[0]) != ("s", "u")
            for sat in ("",) if fits else ("", ".sat"):  # what always fits has no .sat
                yield Case(
                    "convert", _line(f"cvt{sat}.{to}.{source}", 1), (source,), (_register(to),)
                )
    for letter in "su":
        for source in ("s32", "u32"):
            yield Case("convert", _line(f"cvt.{letter}8.{source}", 1), (source,), (np.uint32,))
            yield Case("convert", _line(f"cvt.sat.{letter}8.{source}", 1), (source,), (np.uint32,))
    floats = ("f16", "bf16", "f32", "f64")
    for source, to in product(floats, integers):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            yield Case(
                "convert", _line(f"cvt.{mode}.{to}.{source}", 1), (source,), (_register(to),)
            )
    for source, to in product(integers, floats):
        for mode in _MODES:
            yield Case(
                "convert", _line(f"cvt.{mode}.{to}.{source}", 1), (source,), (_register(to),)
            )
    narrower = [("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64"), ("f32", "f64")]
    for to, source in narrower:
        for mode in _MODES:
            yield Case(
                "convert", _line(f"cvt.{mode}.{to}.{source}", 1), (source,), (_register(to),)
            )
        yield Case(
            "convert",
            _line(f"cvt.{to}.{source}".replace(f"{to}.{source}", f"{source}.{to}"), 1),
            (to,),
            (_register(source),),
        )
    for tail in ("rn.ftz", "rz.ftz", "rn.sat"):
        yield Case("convert", _line(f"cvt.{tail}.f32.f64", 1), ("f64",), (np.uint32,))
    yield Case("convert", _line("cvt.ftz.f64.f32", 1), ("f32",), (np.uint64,))
    for kind in ("f16", "f32", "f64"):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            yield Case(
                "convert", _line(f"cvt.{mode}.{kind}.{kind}", 1), (kind,), (_register(kind),)
            )
    for tail in ("", ".relu"):
        for mode in ("rn", "rz"):
            for to in ("f16x2", "bf16x2"):
                line = _line(f"cvt.{mode}{tail}.{to}.f32", 2)
                yield Case("convert", line, ("f32", "f32"), (np.uint32,))
            for to in ("f16", "bf16"):
                yield Case(
                    "convert", _line(f"cvt.{mode}{tail}.{to}.f32", 1), ("f32",), (np.uint16,)
                )
        for kind in ("e4m3x2", "e5m2x2"):
            line = _line(f"cvt.rn.satfinite{tail}.{kind}.f32", 2)
            yield Case("convert", line, ("f32", "f32"), (np.uint16,))
            line = _line(f"cvt.rn.satfinite{tail}.{kind}.f16x2", 1)
            yield Case("convert", line, ("every2",), (np.uint16,), 1 << 16)
            yield Case(
                "convert",
                _line(f"cvt.rn{tail}.f16x2.{kind}", 1),
                ("every16",),
                (np.uint32,),
                1 << 16,
            )
    for tail in ("rna", "rna.satfinite", "rn", "rz", "rn.relu", "rz.relu"):
        yield Case("convert", _line(f"cvt.{tail}.tf32.f32", 1), ("f32",), (np.uint32,))
    for to in ("s16", "u16"):
        yield Case("convert", _line(f"cvt.pack.sat.{to}.s32", 2), ("s32", "s32"), (np.uint32,))
    for to in ("s8", "u8", "s4", "u4", "s2", "u2"):
        line = _line(f"cvt.pack.sat.{to}.s32.b32", 3)
        yield Case("convert", line, ("s32", "s32", "u32"), (np.uint32,))


def _approximations() -> Iterator[Case]:
    for stem in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"):
        for tail in ("", ".ftz"):
            opcode = f"{stem}.approx{tail}.f32"
            yield Case("approximate", _line(opcode, 1), ("f32",), (np.float32,), MANY_ROWS)
    yield Case("approximate", _line("tanh.approx.f32", 1), ("f32",), (np.float32,), MANY_ROWS)
    for stem, kind in (
        ("ex2.approx", "f16"),
        ("ex2.approx.ftz", "bf16"),
        ("tanh.approx", "f16"),
        ("tanh.approx", "bf16"),
    ):
        yield Case(
            "approximate", _line(f"{stem}.{kind}", 1), ("every16",), (_FLOAT[kind],), 1 << 16
        )
    for opcode in ("div.approx.f32", "div.full.f32", "div.approx.ftz.f32", "div.full.ftz.f32"):
        yield Case("approximate", _line(opcode, 2), ("f32", "f32"), (np.float32,), MANY_ROWS)
    for opcode in ("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64", "rsqrt.approx.f64"):
        yield Case("approximate", _line(opcode, 1), ("f64",), (np.float64,), MANY_ROWS // 4)


def _exchanges() -> Iterator[Case]:
    for mode in ("up", "down", "bfly", "idx"):
        for clamp in ("0", "0x1f", "0x1807", "0x1c03"):
            line = f"shfl.sync.{mode}.b32 {{d}}|{{q}}, {{a}}, {{b}}, {clamp}, 0xffffffff"
            yield Case("exchange", line, ("u32", "amount"), (np.uint32, np.bool_))
    for op, kind in (
        *product(("add", "min", "max"), ("u32", "s32")),
        *product(("and", "or", "xor"), ("b32",)),
    ):
        line = f"redux.sync.{op}.{kind} {{d}}, {{a}}, 0xffffffff"
        yield Case("exchange", line, ("u32",), (np.uint32,))
    line = "match.any.sync.b32 {d}, {a}, 0xffffffff"
    yield Case("exchange", "and.b32 {a}, {a}, 7; " + line, ("u32",), (np.uint32,))
    line = "match.all.sync.b64 {d}|{q}, {a}, 0xffffffff"
    yield Case("exchange", line, ("u64",), (np.uint32, np.bool_))
    for mode in ("all", "any", "uni"):
        yield Case(
            "exchange", f"vote.sync.{mode}.pred {{d}}, {{a}}, 0xffffffff", ("pred",), (np.bool_,)
        )
    yield Case("exchange", "vote.sync.ballot.b32 {d}, {a}, 0xffffffff", ("pred",), (np.uint32,))


CASES = [
    *_integer(), *_bits(), *_comparisons(), *_float(), *_conversions(), *_exchanges(),
    *_approximations(),
]  # fmt: skip
