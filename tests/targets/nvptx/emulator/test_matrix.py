"""mma.sync of every type against NumPy, from fragments that the PTX ISA's formulas place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.findings import Kind

Array = NDArray[Any]

_NUMPY: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
    "f32": np.float32, "s32": np.int32,
}  # fmt: skip


def _bits(kind: str) -> int:
    small = {"s4": 4, "u4": 4, "b1": 1}
    return small.get(kind) or 8 * np.dtype(_NUMPY[kind]).itemsize


def _draw(kind: str, shape: tuple[int, int], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "s4":
        return rng.integers(-8, 8, shape)
    if kind in ("u4", "b1"):
        return rng.integers(0, 16 if kind == "u4" else 2, shape)
    if np.dtype(_NUMPY[kind]).kind in "iu":
        limits = np.iinfo(_NUMPY[kind])
        return rng.integers(limits.min, limits.max, shape).astype(_NUMPY[kind])
    return rng.normal(size=shape).astype(np.float32).astype(_NUMPY[kind])


def _packed(values: Array, kind: str) -> Array:
    """Pack a lane's elements, (32, n), into 32-bit words (64-bit ones of f64)."""
    bits = _bits(kind)
    if bits >= 8:
        return np.ascontiguousarray(values).view(np.uint64 if bits == 64 else np.uint32)
    per = 32 // bits
    fields = (values & (1 << bits) - 1).astype(np.uint64).reshape(32, -1, per)
    shifts = np.arange(per, dtype=np.uint64) * np.uint64(bits)
    return np.bitwise_or.reduce(fields << shifts, axis=2).astype(np.uint32)


def _operands(
    a: Array, b: Array, c: Array, kinds: tuple[str, str, str]
) -> tuple[Array, Array, Array]:
    """Lay matrices out in registers by the formulas of the PTX ISA, (32, registers)."""
    m, k = a.shape
    tall = m // 8
    per = max(1, 32 // _bits(kinds[0]))
    left: list[list[Any]] = []
    right: list[list[Any]] = []
    sums: list[list[Any]] = []
    for lane in range(32):
        group, place = lane // 4, lane % 4
        left.append(
            [a[group + 8 * (r % tall), place * per + i + r // tall * 4 * per]
             for r in range(tall * k // (4 * per)) for i in range(per)]
        )  # fmt: skip
        right.append(
            [
                b[place * per + i + 4 * per * r, group]
                for r in range(k // (4 * per))
                for i in range(per)
            ]
        )
        sums.append([c[group + 8 * (r // 2), place * 2 + r % 2] for r in range(2 * tall)])
    return (
        _packed(np.array(left), kinds[0]),
        _packed(np.array(right), kinds[1]),
        _packed(np.array(sums), kinds[2]),
    )


def _multiply(
    opcode: str, a: Array, b: Array, c: Array, kinds: tuple[str, str, str], chip: str
) -> Outcome:
    """Execute one instruction; the last array is what each lane holds of the result."""
    registers = _operands(a, b, c, kinds)
    wide = kinds[2] == "f64"
    size, word = (8, "b64") if wide else (4, "b32")
    prefix = "%d" if wide else "%r"
    lines: list[str] = []
    names: list[list[str]] = []
    number = 20
    for i, array in enumerate(registers):
        lines.append(
            f"mul.wide.u32 %d{i + 1}, %t, {size * array.shape[1]}; add.s64 %d{i + 5}, %a{i}, %d{i + 1};"
        )
        names.append([f"{prefix}{number + j}" for j in range(array.shape[1])])
        lines += [
            f"ld.global.{word} {name}, [%d{i + 5}+{size * j}];" for j, name in enumerate(names[-1])
        ]
        number += array.shape[1]
    d = names[2]
    groups = ", ".join("{" + ", ".join(one) + "}" for one in (d, *names))
    lines.append(f"mma.sync.aligned.{opcode} {groups};")
    lines += [f"st.global.{word} [%d7+{size * j}], {name};" for j, name in enumerate(d)]
    return run("\n".join(lines), *registers, chip=chip)


def _matrix(outcome: Outcome, shape: tuple[int, int], kind: str) -> Array:
    """Undo the accumulator's layout."""
    found = np.zeros(shape, _NUMPY[kind])
    values = outcome.arrays[2].view(_NUMPY[kind])
    for lane in range(32):
        for i, value in enumerate(values[lane]):
            found[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = value
    return found


_FLOATS = [
    ("m16n8k8", "f16", "f16", "f32", "sm_80"), ("m16n8k16", "f16", "f16", "f32", "sm_80"),
    ("m16n8k8", "f16", "f16", "f16", "sm_80"), ("m16n8k16", "f16", "f16", "f16", "sm_90a"),
    ("m16n8k8", "bf16", "bf16", "f32", "sm_80"), ("m16n8k16", "bf16", "bf16", "f32", "sm_86"),
    ("m16n8k4", "tf32", "tf32", "f32", "sm_80"), ("m16n8k8", "tf32", "tf32", "f32", "sm_100a"),
    ("m16n8k32", "e4m3", "e5m2", "f32", "sm_89"), ("m16n8k16", "e5m2", "e4m3", "f32", "sm_89"),
    ("m16n8k32", "e4m3", "e4m3", "f16", "sm_120"), ("m8n8k4", "f64", "f64", "f64", "sm_80"),
    ("m16n8k4", "f64", "f64", "f64", "sm_90a"), ("m16n8k8", "f64", "f64", "f64", "sm_90a"),
    ("m16n8k16", "f64", "f64", "f64", "sm_90a"),
]  # fmt: skip


def _sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


@pytest.mark.parametrize(("shape", "a", "b", "c", "chip"), _FLOATS)
def test_floats(shape: str, a: str, b: str, c: str, chip: str) -> None:
    m, n, k = _sizes(shape)
    left, right, sums = _draw(a, (m, k), 1), _draw(b, (k, n), 2), _draw(c, (m, n), 3)
    outcome = _multiply(f"{shape}.row.col.{c}.{a}.{b}.{c}", left, right, sums, (a, b, c), chip)
    assert outcome.findings == []
    exact = left.astype(np.float64) @ right.astype(np.float64) + sums.astype(np.float64)
    tolerance = {"tf32": 4e-3, "f64": 1e-15, "e4m3": 2e-3, "e5m2": 2e-3}.get(a, 1e-6)
    tolerance = max(tolerance, 2e-3 if c == "f16" else 0)
    found = _matrix(outcome, (m, n), c).astype(np.float64)
    np.testing.assert_allclose(found, exact, atol=tolerance * max(np.abs(exact).max(), 1))
    assert outcome.counters.flops.sum() == 2 * m * n * k


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize(
    ("shape", "a", "b"),
    [("m8n8k16", "s8", "u8"), ("m16n8k16", "u8", "s8"), ("m16n8k32", "s8", "s8"),
     ("m8n8k32", "s4", "s4"), ("m16n8k32", "u4", "s4"), ("m16n8k64", "s4", "u4")],
)  # fmt: skip
def test_integers(shape: str, a: str, b: str, saturate: bool) -> None:
    m, n, k = _sizes(shape)
    left, right, sums = _draw(a, (m, k), 1), _draw(b, (k, n), 2), _draw("s32", (m, n), 3)
    sums[0] = 2**31 - 1
    limit = ".satfinite" if saturate else ""
    outcome = _multiply(
        f"{shape}.row.col{limit}.s32.{a}.{b}.s32", left, right, sums, (a, b, "s32"), "sm_80"
    )
    exact = left.astype(np.int64) @ right.astype(np.int64) + sums
    expected = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact.astype(np.int32)
    np.testing.assert_array_equal(_matrix(outcome, (m, n), "s32"), expected)


@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
@pytest.mark.parametrize(
    ("operation", "function"), [("xor", np.bitwise_xor), ("and", np.bitwise_and)]
)
def test_single_bits(shape: str, operation: str, function: Callable[[Array, Array], Array]) -> None:
    m, n, k = _sizes(shape)
    left, right, sums = _draw("b1", (m, k), 1), _draw("b1", (k, n), 2), _draw("s32", (m, n), 3) // 4
    outcome = _multiply(
        f"{shape}.row.col.s32.b1.b1.s32.{operation}.popc",
        left,
        right,
        sums,
        ("b1", "b1", "s32"),
        "sm_80",
    )
    ones = function(left[:, :, None], right[None]).sum(1)
    np.testing.assert_array_equal(_matrix(outcome, (m, n), "s32"), ones + sums)


@pytest.mark.parametrize("layouts", [("row", "col"), ("col", "row"), ("row", "row")])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_four_products_of_a_warp(layouts: tuple[str, str], kind: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (
        rng.normal(size=(4, 8, 4)).astype(np.float16),
        rng.normal(size=(4, 4, 8)).astype(np.float16),
    )
    left, right = np.zeros((32, 4), np.float16), np.zeros((32, 4), np.float16)
    for lane in range(32):
        quad, high = lane % 16 // 4, lane // 16 * 4
        for i in range(4):
            row, column = (lane % 4 + high, i) if layouts[0] == "row" else (i + high, lane % 4)
            left[lane, i] = a[quad, row, column]
            row, column = (i, lane % 4 + high) if layouts[1] == "col" else (lane % 4, i + high)
            right[lane, i] = b[quad, row, column]
    count = 8 if kind == "f32" else 4
    names = [f"%r{20 + i}" for i in range(count)]
    store = "\n".join(f"st.global.b32 [%d7+{4 * i}], {name};" for i, name in enumerate(names))
    outcome = run(
        f"""mul.wide.u32 %d1, %t, 8; add.s64 %d5, %a0, %d1; add.s64 %d6, %a1, %d1;
        mul.wide.u32 %d2, %t, {4 * count}; add.s64 %d7, %a2, %d2;
        ld.global.v2.b32 {{%r1, %r2}}, [%d5]; ld.global.v2.b32 {{%r3, %r4}}, [%d6];
        {"".join(f"mov.b32 {name}, 0;" for name in names)}
        mma.sync.aligned.m8n8k4.{layouts[0]}.{layouts[1]}.{kind}.f16.f16.{kind}
          {{{", ".join(names)}}}, {{%r1, %r2}}, {{%r3, %r4}}, {{{", ".join(names)}}};
        {store}""",
        left, right, np.zeros((32, count), np.uint32),
    )  # fmt: skip
    found = outcome.arrays[2].view(_NUMPY[kind])
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for lane in range(32):
        quad, high = lane % 16 // 4, lane // 16 * 4
        for i in range(8):
            row, column = lane % 4 + high, i
            if kind == "f32":
                row = (lane & 1) + (i & 2) + high
                column = (i & 4) + (lane & 2) + (i & 1)
            assert abs(found[lane, i] - exact[quad, row, column]) < (
                1e-5 if kind == "f32" else 1e-2
            )


def _narrow(kind: str, code: int) -> float:
    """Decode a type of four or six bits from its byte."""
    exponent_bits, fraction_bits = {"e2m1": (2, 1), "e3m2": (3, 2), "e2m3": (2, 3)}[kind]
    code = code >> 2 if kind == "e2m1" else code
    fraction = code & (1 << fraction_bits) - 1
    exponent = code >> fraction_bits & (1 << exponent_bits) - 1
    sign = -1 if code >> exponent_bits + fraction_bits & 1 else 1
    bias = (1 << exponent_bits - 1) - 1
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - fraction_bits)
    return sign * (1 + fraction / (1 << fraction_bits)) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("kinds", [("e2m1", "e3m2"), ("e2m3", "e2m1"), ("e3m2", "e3m2")])
def test_types_of_four_and_six_bits_come_in_bytes(kinds: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    mask = {"e2m1": 0x3C, "e3m2": 0x3F, "e2m3": 0x3F}
    left: Array = rng.integers(0, 256, (16, 32)).astype(np.uint8) & mask[kinds[0]]
    right: Array = rng.integers(0, 256, (32, 8)).astype(np.uint8) & mask[kinds[1]]
    sums = np.zeros((16, 8), np.float32)
    outcome = _multiply(
        f"m16n8k32.row.col.kind::f8f6f4.f32.{kinds[0]}.{kinds[1]}.f32", left, right, sums,
        ("u8", "u8", "f32"), "sm_120",
    )  # fmt: skip
    tables = [np.array([_narrow(kind, code) for code in range(64)]) for kind in kinds]
    exact = tables[0][left] @ tables[1][right]
    np.testing.assert_array_equal(_matrix(outcome, (16, 8), "f32"), exact)


@pytest.mark.parametrize(
    "opcode",
    ["m16n8k16.row.row.f32.f16.f16.f32", "m16n8k16.row.col.f32.f16.bf16.f32",
     "m16n8k8.row.col.f32.s8.s8.f32", "m16n8k16.row.col.satfinite.f32.f16.f16.f32",
     "m16n8k32.row.col.f32.f16.f16.f32"],
)  # fmt: skip
def test_what_is_no_instruction_is_named(opcode: str) -> None:
    with pytest.raises(CompilerBug, match=opcode):
        run(
            f"mma.sync.aligned.{opcode} {{%f1,%f1,%f1,%f1}}, {{%r1,%r1,%r1,%r1}}, {{%r1,%r1}}, {{%f1,%f1,%f1,%f1}};"
        )


def test_a_part_of_a_warp_is_found() -> None:
    outcome = run(
        "setp.eq.u32 %p1, %t, 3; @%p1 bra OTHER;"
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%g1,%g2}, {%g3}, {%g4}, {%g1,%g2};"
        "bra END; OTHER: bar.warp.sync -1; END:"
    )
    assert outcome.kinds == {Kind.DIVERGENT_BARRIER}
