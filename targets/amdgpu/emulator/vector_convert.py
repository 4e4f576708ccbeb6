"""Conversions between number formats, those of 8 bits among them.

Float to integer goes toward zero and to the nearest in range (0 of NaN). Integer to float32 rounds
once to nearest even; float64 is exact between. fp8 and bf8 are the OCP formats, but on gfx942 the
older FNUZ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import floats
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.functions import Binary, Function, Unary
from tiledsl.targets.amdgpu.emulator.operands import reader, writer
from tiledsl.targets.amdgpu.emulator.text import Parsed, Register
from tiledsl.targets.amdgpu.emulator.vector import Operation, operation
from tiledsl.targets.gpu.emulator import formats
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]

_CONVERT = InstructionClass.CONVERT


def _op(result: str, sources: str, function: Function) -> Entry:
    return operation(result, sources, function, _CONVERT)


def to_single(value: Array) -> Array:
    """Widen float16 to float32 (NumPy alone would keep a signaling NaN)."""
    return floats.quiet(value.astype(np.float32))


def to_half(value: Array) -> Array:
    """Round float32 to float16."""
    return floats.quiet(value).astype(np.float16)


def _to(dtype: Any) -> Unary:
    return lambda value: value.astype(dtype)


TO_INTEGER: dict[str, Unary] = {
    "i32": floats.to_integer(-(2**31), 2**31 - 1, np.int32),
    "u32": floats.to_integer(0, 2**32 - 1, np.uint32),
    "i16": floats.to_integer(-(2**15), 2**15 - 1, np.int16),
    "u16": floats.to_integer(0, 2**16 - 1, np.uint16),
}


def _after(function: Unary, inner: Unary) -> Unary:
    return lambda value: function(inner(floats.wide(value)))


def _nearest_up(value: Array) -> Array:
    return np.floor(value + 0.5)


def toward_zero(value: Array) -> Array:
    """Round float32 to float16 toward zero; what is finite stays so."""
    near = to_half(value)
    beyond = np.abs(near.astype(np.float32)) > np.abs(value)
    bits = near.view(np.uint16)
    return np.where(beyond, bits - np.uint16(1), bits).view(np.float16)


def _both(first: Array, second: Array) -> NDArray[np.uint32]:
    """Return 32 bits of two halves of 16, given as anything of 16 bits."""
    low, high = (
        np.ascontiguousarray(one).view(np.uint16).astype(np.uint32) for one in (first, second)
    )
    return low | (high << np.uint32(16))


def packed(function: Unary) -> Binary:
    """Return the function that converts two values and packs the results of 16 bits."""
    return lambda a, b: _both(function(a), function(b))


def _normalized(low: float, factor: float, dtype: Any) -> Unary:
    """Return the conversion of [low, 1] to integers of 16 bits."""

    def function(value: Array) -> Array:
        clipped = np.clip(np.where(np.isnan(value), 0, floats.wide(value)), low, 1.0)
        return np.rint(clipped * factor).astype(dtype)

    return function


def _clipped(low: int, high: int, dtype: Any) -> Unary:
    return lambda value: np.clip(value, low, high).astype(dtype)


def to_bfloat16(value: Array) -> NDArray[np.uint16]:
    """Round float32 to the bits of bf16, to nearest even."""
    return formats.BF16.encode(value)


def _pack_byte(value: Array, place: Array, old: Array) -> Array:
    """Put a float, as an unsigned byte, at a place in a word (v_cvt_pk_u8_f32)."""
    byte = floats.to_integer(0, 255, np.uint32)(np.rint(value))
    shift = (place & np.uint32(3)) * np.uint32(8)
    return (old & ~(np.uint32(0xFF) << shift)) | (byte << shift)


# --- 8 bits --------------------------------------------------------------------------------------


def eight_bit_format(kind: str, context: Context) -> formats.Format:
    """Return the format of "fp8" or "bf8" on a chip."""
    if context.chip.fp8 == "fnuz":
        return formats.E4M3_FNUZ if kind == "fp8" else formats.E5M2_FNUZ
    return formats.E4M3 if kind == "fp8" else formats.E5M2


def encode_eight(values: Array, form: formats.Format) -> NDArray[np.uint8]:
    """Round float32 to 8 bits once, to nearest even; what is too large becomes NaN or infinity."""
    return form.encode(np.asarray(values, np.float32))


def _from_eight(kind: str) -> Entry:
    """Return the entry of v_cvt_f32_fp8: one byte of a word to float32."""

    def decode(parsed: Parsed, context: Context) -> Step:
        form = eight_bit_format(kind, context)
        shift = np.uint32(8 * _byte(parsed))
        plain = Parsed(parsed.text, parsed.mnemonic, parsed.stem, parsed.encoding, parsed.operands,
                       {k: v for k, v in parsed.modifiers.items() if k not in _BYTE_MODIFIERS},
                       parsed.rest)  # fmt: skip

        def function(word: Array) -> Array:
            byte = (word >> shift).astype(np.uint8)
            return form.decode(byte).astype(np.float32)

        return Operation("f32", ("u32",), function)(plain, context)

    return Entry(decode, _CONVERT)


_BYTE_MODIFIERS = ("byte_sel", "op_sel", "src0_sel")


def _byte(parsed: Parsed) -> int:
    """Return which byte of the source is meant."""
    if "src0_sel" in parsed:
        return (
            int(parsed.modifiers["src0_sel"][-1]) if "BYTE" in parsed.modifiers["src0_sel"] else 0
        )
    halves = parsed.bits("op_sel")
    if halves is not None:
        # op_sel is the byte's number, its high bit first.
        return sum(bit << place for place, bit in enumerate(halves[:2]))
    return parsed.integer("byte_sel")


def _pair_from_eight(kind: str) -> Entry:
    """Return the entry of v_cvt_pk_f32_fp8: two bytes of a word to two float32."""

    def decode(parsed: Parsed, context: Context) -> Step:
        form = eight_bit_format(kind, context)
        halves = parsed.bits("op_sel")
        half = halves[0] if halves else 0
        selected = parsed.modifiers.get("src0_sel", "")
        half = int(selected[-1]) if selected.startswith("WORD") else half
        source, destination = parsed.operands[1], parsed.operands[0]
        assert isinstance(destination, Register)
        read = reader(source, "u16", context, half)
        first = writer(Register("v", destination.index), "f32", context)
        second = writer(Register("v", destination.index + 1), "f32", context)

        def step(m: Any) -> None:
            pair = read(m)
            low, high = pair.astype(np.uint8), (pair >> np.uint16(8)).astype(np.uint8)
            first(m, form.decode(low).astype(np.float32))
            second(m, form.decode(high).astype(np.float32))

        return step

    return Entry(decode, _CONVERT)


def _pair_to_eight(kind: str) -> Entry:
    """Return the entry of v_cvt_pk_fp8_f32: two float32 to two bytes, in one half of a word."""

    def decode(parsed: Parsed, context: Context) -> Step:
        form = eight_bit_format(kind, context)
        halves = parsed.bits("op_sel") or ()
        half = halves[-1] if len(halves) > 2 else 0
        destination, *sources = parsed.operands
        a, b = (reader(one, "f32", context) for one in sources)
        write = writer(destination, "u16", context, half)

        def step(m: Any) -> None:
            low, high = (encode_eight(one(m), form).astype(np.uint16) for one in (a, b))
            write(m, low | (high << np.uint16(8)))

        return step

    return Entry(decode, _CONVERT)


def _random_to_eight(kind: str) -> Entry:
    """Return the entry of v_cvt_sr_fp8_f32: round by the random bits of the second source."""

    def decode(parsed: Parsed, context: Context) -> Step:
        form = eight_bit_format(kind, context)
        cut = np.uint32((1 << (20 if kind == "fp8" else 21)) - 1)
        shift = np.uint32(12 if kind == "fp8" else 11)
        halves = parsed.bits("op_sel") or ()
        byte = parsed.integer("byte_sel", 2 * halves[3] + halves[2] if len(halves) > 3 else 0)
        destination, *sources = parsed.operands
        a, b = (reader(one, k, context) for one, k in zip(sources, ("f32", "u32"), strict=True))
        old, write = reader(destination, "u32", context), writer(destination, "u32", context)
        place = np.uint32(8 * byte)

        def step(m: Any) -> None:
            bits = np.ascontiguousarray(a(m)).view(np.uint32)
            finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
            moved = np.where(finite, (bits + (b(m) >> shift)) & ~cut, bits).view(np.float32)
            new = encode_eight(moved, form).astype(np.uint32) << place
            write(m, (old(m) & ~(np.uint32(0xFF) << place)) | new)

        return step

    return Entry(decode, _CONVERT)


# --- tables --------------------------------------------------------------------------------------


def _plain_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for integer in ("i32", "u32"):
        for kind in ("f32", "f64"):
            dtype = np.float32 if kind == "f32" else np.float64
            table[f"v_cvt_{integer}_{kind}"] = _op(integer, kind, TO_INTEGER[integer])
            table[f"v_cvt_{kind}_{integer}"] = _op(kind, integer, _to(dtype))
    for integer in ("i16", "u16"):
        table[f"v_cvt_{integer}_f16"] = _op(integer, "f16", TO_INTEGER[integer])
        table[f"v_cvt_f16_{integer}"] = _op("f16", integer, _to(np.float16))
    for byte in range(4):
        shift = np.uint32(8 * byte)
        table[f"v_cvt_f32_ubyte{byte}"] = _op(
            "f32", "u32", lambda a, shift=shift: (a >> shift & np.uint32(0xFF)).astype(np.float32)
        )
    up, floor = _after(TO_INTEGER["i32"], _nearest_up), _after(TO_INTEGER["i32"], np.floor)
    table |= {
        "v_cvt_f32_f16": _op("f32", "f16", to_single),
        "v_cvt_f16_f32": _op("f16", "f32", to_half),
        "v_cvt_f64_f32": _op("f64", "f32", _to(np.float64)),
        "v_cvt_f32_f64": _op("f32", "f64", _to(np.float32)),
        "v_cvt_f32_bf16": _op("f32", "bf16", floats.quiet),
        "v_cvt_rpi_i32_f32": _op("i32", "f32", up),
        "v_cvt_nearest_i32_f32": _op("i32", "f32", up),
        "v_cvt_flr_i32_f32": _op("i32", "f32", floor),
        "v_cvt_floor_i32_f32": _op("i32", "f32", floor),
        "v_cvt_i32_i16": _op("i32", "i16", _to(np.int32)),
        "v_cvt_u32_u16": _op("u32", "u16", _to(np.uint32)),
        "v_sat_pk_u8_i16": _op("u16", "u32", _saturate_bytes),
    }
    for name, low, factor, dtype in (
        ("i16", -1.0, 32767.0, np.int16), ("u16", 0.0, 65535.0, np.uint16)
    ):  # fmt: skip
        norm = _normalized(low, factor, dtype)
        for spelled in ("norm", "_norm_"):
            joined = f"v_cvt_pk{spelled}" if spelled == "norm" else "v_cvt_pk_norm"
            table[f"{joined}_{name}_f32"] = _op("u32", "f32 f32", packed(norm))
            table[f"{joined}_{name}_f16"] = _op("u32", "f16 f16", packed(norm))
        table[f"v_cvt_norm_{name}_f16"] = _op(name, "f16", norm)
    return table


def _saturate_bytes(value: Array) -> Array:
    halves = np.ascontiguousarray(value)[..., None].view(np.int16)
    low, high = (np.clip(halves[..., i], 0, 255).astype(np.uint16) for i in (0, 1))
    return low | (high << np.uint16(8))


def _packed_table() -> dict[str, Entry]:
    truncated = _op("u32", "f32 f32", packed(toward_zero))
    table = {
        "v_cvt_pkrtz_f16_f32": truncated,
        "v_cvt_pk_rtz_f16_f32": truncated,
        "v_cvt_pk_f16_f32": _op("u32", "f32 f32", packed(to_half)),
        "v_cvt_pk_bf16_f32": _op("u32", "f32 f32", packed(to_bfloat16)),
        "v_cvt_pk_i16_i32": _op("u32", "i32 i32", packed(_clipped(-(2**15), 2**15 - 1, np.int16))),
        "v_cvt_pk_u16_u32": _op("u32", "u32 u32", packed(_clipped(0, 2**16 - 1, np.uint16))),
        "v_cvt_pk_i16_f32": _op("u32", "f32 f32", packed(TO_INTEGER["i16"])),
        "v_cvt_pk_u16_f32": _op("u32", "f32 f32", packed(TO_INTEGER["u16"])),
        "v_cvt_pk_u8_f32": _op("u32", "f32 u32 u32", _pack_byte),
        "v_pack_b32_f16": _op("u32", "f16 f16", _both),
    }
    for kind in ("fp8", "bf8"):
        table |= {
            f"v_cvt_f32_{kind}": _from_eight(kind),
            f"v_cvt_pk_f32_{kind}": _pair_from_eight(kind),
            f"v_cvt_pk_{kind}_f32": _pair_to_eight(kind),
            f"v_cvt_sr_{kind}_f32": _random_to_eight(kind),
        }
    return table


TABLE: dict[str, Entry] = {**_plain_table(), **_packed_table()}
