"""Integer instructions against Python's integers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.targets.nvptx.emulator.evaluating import evaluate
from tiledsl.dialects.diagnostics import CompilerBug

_EDGES = (0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256)


def rows(*widths: int) -> list[tuple[int, ...]]:
    """Return operands: random ones, and small ones, large ones and those at the ends of ranges."""
    source = random.Random(str(widths))

    def word(bits: int) -> int:
        top = 1 << bits
        if source.random() < 0.5:
            return source.choice((*_EDGES, -1, -2, top // 2, top // 2 - 1, top // 2 + 1)) % top
        return source.randrange(top)

    return [tuple(word(bits) for bits in widths) for _ in range(512)]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def run(line: str, data: list[tuple[int, ...]], widths: tuple[int, ...], result: int) -> list[int]:
    columns = [
        np.array([row[i] for row in data], f"u{width // 8}") for i, width in enumerate(widths)
    ]
    (found,) = evaluate(line, *columns, results=(f"u{result // 8}",))
    return [int(one) for one in found]


def typed(value: int, kind: str) -> int:
    return signed(value, int(kind[1:])) if kind[0] == "s" else value


Oracle = Callable[[int, int], int]


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a if b == 0 else a - _quotient(a, b) * b


_BINARY: dict[str, Oracle] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": _quotient,
    "rem": _remainder,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", _BINARY)
def test_two_operands(name: str, kind: str) -> None:
    bits = int(kind[1:])
    given_rows = rows(bits, bits)
    found = run(f"{name}.{kind} {{d}}, {{a}}, {{b}}", given_rows, (bits, bits), bits)
    wanted = [_BINARY[name](typed(a, kind), typed(b, kind)) % (1 << bits) for a, b in given_rows]
    assert found == wanted


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_products_in_full_and_their_upper_halves(kind: str) -> None:
    bits = int(kind[1:])
    given_rows = rows(bits, bits)
    exact = [typed(a, kind) * typed(b, kind) for a, b in given_rows]
    high = run(f"mul.hi.{kind} {{d}}, {{a}}, {{b}}", given_rows, (bits, bits), bits)
    assert high == [(one >> bits) % (1 << bits) for one in exact]
    if bits < 64:
        wide = run(f"mul.wide.{kind} {{d}}, {{a}}, {{b}}", given_rows, (bits, bits), 2 * bits)
        assert wide == [one % (1 << 2 * bits) for one in exact]


_ONE: dict[str, tuple[tuple[int, ...], Callable[[int], int]]] = {
    "abs.s32": ((32,), lambda a: abs(signed(a, 32))),
    "neg.s64": ((64,), lambda a: -a),
    "cnot.b32": ((32,), lambda a: a == 0),
    "brev.b32": ((32,), lambda a: int(f"{a:032b}"[::-1], 2)),
    "brev.b64": ((64,), lambda a: int(f"{a:064b}"[::-1], 2)),
    "bfind.u32": ((32,), lambda a: a.bit_length() - 1),
    "bfind.shiftamt.u32": ((32,), lambda a: 32 - a.bit_length() if a else -1),
}
_TWO: dict[str, tuple[tuple[int, ...], Callable[[int, int], int]]] = {
    "mul24.lo.u32": ((32, 32), lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    "mul24.hi.s32": (
        (32, 32),
        lambda a, b: signed(a & 0xFFFFFF, 24) * signed(b & 0xFFFFFF, 24) >> 16,
    ),
    "shl.b32": ((32, 32), lambda a, n: 0 if n > 31 else a << n),
    "shr.u64": ((64, 32), lambda a, n: 0 if n > 63 else a >> n),
    "shr.s32": ((32, 32), lambda a, n: signed(a, 32) >> min(n, 31)),
    "shr.s16": ((16, 32), lambda a, n: signed(a, 16) >> min(n, 15)),
    "szext.clamp.s32": ((32, 32), lambda a, n: _extended(a, min(n, 32))),
    "bmsk.clamp.b32": ((32, 32), lambda p, n: (1 << min(n, 32)) - 1 << p if p < 32 else 0),
}
_THREE: dict[str, tuple[tuple[int, ...], Callable[[int, int, int], int]]] = {
    "mad.lo.s32": ((32, 32, 32), lambda a, b, c: a * b + c),
    "mad.hi.u32": ((32, 32, 32), lambda a, b, c: (a * b >> 32) + c),
    "mad.wide.u32": ((32, 32, 64), lambda a, b, c: a * b + c),
    "mad.wide.s32": ((32, 32, 64), lambda a, b, c: signed(a, 32) * signed(b, 32) + c),
    "mad.lo.u64": ((64, 64, 64), lambda a, b, c: a * b + c),
    "sad.u32": ((32, 32, 32), lambda a, b, c: abs(a - b) + c),
    "sad.s32": ((32, 32, 32), lambda a, b, c: abs(signed(a, 32) - signed(b, 32)) + c),
    "shf.l.wrap.b32": ((32, 32, 32), lambda a, b, n: (b << 32 | a) << n % 32 >> 32),
    "shf.r.clamp.b32": ((32, 32, 32), lambda a, b, n: (b << 32 | a) >> min(n, 32)),
    "bfe.u32": ((32, 32, 32), lambda a, p, n: a >> p % 256 & (1 << n % 256) - 1),
}
_FORMULAS: dict[str, tuple[tuple[int, ...], Callable[..., int]]] = {**_ONE, **_TWO, **_THREE}


@pytest.mark.parametrize("line", _FORMULAS)
def test_against_its_formula(line: str) -> None:
    widths, oracle = _FORMULAS[line]
    given_rows = rows(*widths)
    result = 64 if ".wide" in line else widths[0]
    names = ", ".join("{" + name + "}" for name in "abc"[: len(widths)])
    found = run(f"{line} {{d}}, {names}", given_rows, widths, result)
    assert found == [int(oracle(*row)) % (1 << result) for row in given_rows]


def _extended(value: int, count: int) -> int:
    return signed(value & (1 << count) - 1, count) if count else 0


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_bits(bits: int) -> None:
    given_rows = rows(bits)
    ones = run(f"popc.b{bits} {{d}}, {{a}}", given_rows, (bits,), 32)
    assert ones == [a.bit_count() for (a,) in given_rows]
    zeros = run(f"clz.b{bits} {{d}}, {{a}}", given_rows, (bits,), 32)
    assert zeros == [bits - a.bit_length() for (a,) in given_rows]
    highest = run(f"bfind.s{bits} {{d}}, {{a}}", given_rows, (bits,), 32)
    magnitudes = [a if signed(a, bits) >= 0 else ~signed(a, bits) for (a,) in given_rows]
    assert highest == [(a.bit_length() - 1) % (1 << 32) for a in magnitudes]


@pytest.mark.parametrize("bits", [32, 64])
def test_fields_signed_and_inserted(bits: int) -> None:
    given_rows = rows(bits, 32, 32)

    def meant(amount: int) -> int:  # beyond 255, which PTX leaves open, as an H200
        return amount & 255 if bits == 32 else min(amount, 255)

    def extract(value: int, position: int, length: int) -> int:
        at, count = meant(position), meant(length)
        if count == 0:
            return 0
        sign = value >> min(at + count - 1, bits - 1) & 1
        found = 0
        for i in range(bits):
            inside = i < count and at + i < bits
            found |= (value >> at + i & 1 if inside else sign) << i
        return found

    found = run(f"bfe.s{bits} {{d}}, {{a}}, {{b}}, {{c}}", given_rows, (bits, 32, 32), bits)
    assert found == [extract(*row) for row in given_rows]

    inserted = rows(bits, bits, 32, 32)

    def insert(field: int, word: int, position: int, length: int) -> int:
        at, count = meant(position), meant(length)
        mask = ((1 << count) - 1 << at) % (1 << bits)
        return word & ~mask | field << at & mask

    line = f"bfi.b{bits} {{d}}, {{a}}, {{b}}, {{c}}, {{e}}"
    assert run(line, inserted, (bits, bits, 32, 32), bits) == [insert(*row) for row in inserted]


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x80, 0xE8, 0x96, 0xCA, 0x1D])
def test_three_input_logic_looks_bits_up(table: int) -> None:
    data = rows(32, 32, 32)
    found = run(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table}", data, (32, 32, 32), 32)
    wanted = [
        sum(
            (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i
            for i in range(32)
        )
        for a, b, c in data
    ]
    assert found == wanted


def test_prmt_picks_bytes_and_signs() -> None:
    data = rows(32, 32, 32)

    def permute(a: int, b: int, selector: int) -> int:
        both, found = b << 32 | a, 0
        for i in range(4):
            nibble = selector >> 4 * i & 15
            byte = both >> 8 * (nibble & 7) & 255
            found |= (byte if nibble < 8 else 255 * (byte >> 7)) << 8 * i
        return found

    found = run("prmt.b32 {d}, {a}, {b}, {c}", data, (32, 32, 32), 32)
    assert found == [permute(*row) for row in data]


@pytest.mark.parametrize(
    ("mode", "selectors"),
    [
        ("f4e", (0x3210, 0x4321, 0x5432, 0x6543)),
        ("b4e", (0x5670, 0x6701, 0x7012, 0x0123)),
        ("rc8", (0x0000, 0x1111, 0x2222, 0x3333)),
        ("ecl", (0x3210, 0x3211, 0x3222, 0x3333)),
        ("ecr", (0x0000, 0x1110, 0x2210, 0x3210)),
        ("rc16", (0x1010, 0x3232, 0x1010, 0x3232)),
    ],
)
def test_modes_of_prmt_are_selectors(mode: str, selectors: tuple[int, ...]) -> None:
    data = [(0x83828180, 0x07060504, n) for n in range(4)]
    plain = [(a, b, selectors[n]) for a, b, n in data]
    wanted = run("prmt.b32 {d}, {a}, {b}, {c}", plain, (32, 32, 32), 32)
    assert run(f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}}", data, (32, 32, 32), 32) == wanted


@pytest.mark.parametrize("first", ["u32", "s32"])
@pytest.mark.parametrize("second", ["u32", "s32"])
def test_dot_products_of_bytes(first: str, second: str) -> None:
    data = rows(32, 32, 32)

    def byte(word: int, i: int, kind: str) -> int:
        value = word >> 8 * i & 255
        return signed(value, 8) if kind[0] == "s" else value

    def half(word: int, i: int) -> int:
        value = word >> 16 * i & 0xFFFF
        return signed(value, 16) if first[0] == "s" else value

    found = run(f"dp4a.{first}.{second} {{d}}, {{a}}, {{b}}, {{c}}", data, (32, 32, 32), 32)
    assert found == [
        (c + sum(byte(a, i, first) * byte(b, i, second) for i in range(4))) % (1 << 32)
        for a, b, c in data
    ]
    found = run(f"dp2a.hi.{first}.{second} {{d}}, {{a}}, {{b}}, {{c}}", data, (32, 32, 32), 32)
    assert found == [
        (c + sum(half(a, i) * byte(b, 2 + i, second) for i in range(2))) % (1 << 32)
        for a, b, c in data
    ]


def test_sums_of_two_words_carry() -> None:
    data = rows(64, 64)
    split = "mov.b64 {{%r1, %r2}}, {a}; mov.b64 {{%r3, %r4}}, {b}; "
    join = "mov.b64 {d}, {{%r5, %r6}}"
    plus = "add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4; "
    minus = "sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4; "
    assert run(split + plus + join, data, (64, 64), 64) == [(a + b) % (1 << 64) for a, b in data]
    assert run(split + minus + join, data, (64, 64), 64) == [(a - b) % (1 << 64) for a, b in data]
    product = (
        "mul.lo.u32 %r5, %r1, %r3; mul.hi.u32 %r6, %r1, %r3; "
        "mad.lo.u32 %r6, %r1, %r4, %r6; mad.lo.cc.u32 %r7, %r2, %r3, %r6; "
        "madc.hi.u32 %r8, 0, 0, 0; mov.b32 %r6, %r7; "
    )
    assert run(split + product + join, data, (64, 64), 64) == [a * b % (1 << 64) for a, b in data]


def test_saturating_sums_and_packed_ones() -> None:
    data = rows(32, 32)
    found = run("add.sat.s32 {d}, {a}, {b}", data, (32, 32), 32)
    limit = 1 << 31
    assert found == [
        max(-limit, min(limit - 1, signed(a, 32) + signed(b, 32))) % (1 << 32) for a, b in data
    ]
    found = run("max.s16x2 {d}, {a}, {b}", data, (32, 32), 32)
    assert found == [
        sum(
            max(signed(a >> i & 0xFFFF, 16), signed(b >> i & 0xFFFF, 16)) % (1 << 16) << i
            for i in (0, 16)
        )
        for a, b in data
    ]
    found = run("max.relu.s32 {d}, {a}, {b}", data, (32, 32), 32)
    assert found == [max(signed(a, 32), signed(b, 32), 0) for a, b in data]


_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("relation", _RELATIONS)
def test_comparisons(relation: str, kind: str) -> None:
    bits = int(kind[1:])
    given_rows = rows(bits, bits)
    columns = [np.array([row[i] for row in given_rows], f"u{bits // 8}") for i in range(2)]
    line = f"setp.{relation}.{kind} {{d}}, {{a}}, {{b}}"
    (found,) = evaluate(line, *columns, results=(np.bool_,))
    wanted = [_RELATIONS[relation](typed(a, kind), typed(b, kind)) for a, b in given_rows]
    assert found.tolist() == wanted


def test_comparisons_combine_with_a_predicate_and_give_its_opposite() -> None:
    a = np.array([1, 2, 3, 4], np.uint32)
    c = np.array([True, False, True, False])
    line = "setp.lt.and.u32 {d}|{q}, {a}, 3, {b}"
    first, second = evaluate(line, a, c, results=(np.bool_, np.bool_))
    assert first.tolist() == [True, False, False, False]
    assert second.tolist() == [False, False, True, False]
    line = "setp.lt.or.u32 {d}, {a}, 3, !{b}"
    (only,) = evaluate(line, a, c, results=(np.bool_,))
    assert only.tolist() == [True, True, False, True]
    (ones,) = evaluate("set.gt.u32.u32 {d}, {a}, 2", a, results=(np.uint32,))
    assert ones.tolist() == [0, 0, 2**32 - 1, 2**32 - 1]
    (chosen,) = evaluate("slct.u32.s32 {d}, 7, 8, {a}", a - np.uint32(3), results=(np.uint32,))
    assert chosen.tolist() == [8, 8, 7, 7]


@pytest.mark.parametrize(
    "line", ["add.bogus.u32 {d}, {a}, 1", "frobnicate.u32 {d}, {a}", "mul.u32 {d}, {a}, {a}"]
)
def test_an_unknown_instruction_is_an_error_that_names_it(line: str) -> None:
    opcode = line.split()[0].replace(".", r"\.")
    with pytest.raises(CompilerBug, match=opcode):
        evaluate(line, np.arange(4, dtype=np.uint32), results=(np.uint32,))
