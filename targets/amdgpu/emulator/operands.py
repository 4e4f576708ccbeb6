"""Read and write operands as typed arrays; what the text says of them is settled at decoding.

`reader` and `writer` serve vector instructions: what they read broadcasts to (waves, lanes), what
is written goes to the active lanes. `scalar_reader` and `scalar_writer` serve scalar ones, with
(waves,).

What kinds there are and what constants mean in each is in `constants`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator import floats
from tiledsl.targets.amdgpu.emulator.constants import (
    DTYPES,
    fixed_array,
    fixed_bits,
    high_half,
    plain,
    width,
)
from tiledsl.targets.amdgpu.emulator.decode import Context
from tiledsl.targets.amdgpu.emulator.text import EXEC, Name, Operand, Register
from tiledsl.targets.gpu.emulator import formats

Array = NDArray[Any]
Read = Callable[[Any], Array]
"""Returns the operand's values, given the machine."""
Write = Callable[[Any, Any], None]
"""Writes values, given the machine and them."""


# --- constants -----------------------------------------------------------------------------------


# --- modifiers -----------------------------------------------------------------------------------


def _modified(read: Read, operand: Operand, kind: str) -> Read:
    """Apply neg and abs; on bits they act on the sign of the float of that width."""
    if isinstance(operand, Register) and operand.extended:
        raise CompilerBug("sext() outside of SDWA")
    if not operand.negated and not operand.absolute:
        return read
    if kind[0] == "f" or kind == "bf16":
        if not operand.absolute:
            return lambda m: np.negative(read(m))
        if not operand.negated:
            return lambda m: np.abs(read(m))
        return lambda m: np.negative(np.abs(read(m)))
    sign = DTYPES[kind](1) << DTYPES[kind](width(kind) - 1)
    if not operand.absolute:
        return lambda m: read(m) ^ sign
    if not operand.negated:
        return lambda m: read(m) & ~sign
    return lambda m: read(m) | sign


# --- vector operands -----------------------------------------------------------------------------


def join(low: Array, high: Array) -> NDArray[np.uint64]:
    """Return 64-bit words, given their halves of equal shape."""
    both = np.empty((*np.broadcast_shapes(low.shape, high.shape), 2), np.uint32)
    both[..., 0] = low
    both[..., 1] = high
    return both.view(np.uint64)[..., 0]


def widen(bits: Array) -> NDArray[np.float32]:
    """Return the values of bf16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def reader(operand: Operand, kind: str, context: Context, half: int = 0) -> Read:
    """Return what reads an operand of a vector instruction.

    Args:
        operand: From the text.
        kind: What it is read as.
        context: The decoder's.
        half: Of 16 bits, which half of the register, where the operand has no `.l` or `.h`.

    Raises:
        CompilerBug: There is no such operand.
    """
    kind = plain(kind)
    bits = fixed_bits(operand, kind, context)
    if bits is not None:
        if half and width(kind) == 16:
            bits = high_half(operand)
        array = fixed_array(bits, kind, (1, 1))
        return _frozen(_modified(lambda m: array, operand, kind))
    return _modified(_read_register(operand, kind, context, half), operand, kind)


def _frozen(read: Read) -> Read:
    """Evaluate a reader that needs no machine."""
    value = read(None)
    return lambda m: value


def _read_register(operand: Operand, kind: str, context: Context, half: int) -> Read:
    if isinstance(operand, Name):
        return _read_name(operand, kind, context)
    assert isinstance(operand, Register)
    file = "v" if operand.file == "v" else "c"
    bits = width(kind)
    index = operand.index
    if bits == 16:
        index = 2 * index + (half if operand.half is None else operand.half)
    if kind == "bf16":
        halves = f"{file}_u16"
        return lambda m: widen(getattr(m, halves)[index])
    if bits == 64:
        return _read_pair(file, index, kind)
    return _READ[f"{file}_{kind}"](index)


def _read_pair(file: str, index: int, kind: str) -> Read:
    dtype = DTYPES[kind]
    if file == "c":
        if index % 2:
            raise CompilerBug(f"a pair of scalar registers begins at s{index}")
        return _READ[f"c_{kind}"](index // 2)
    return lambda m: join(m.v_u32[index], m.v_u32[index + 1]).view(dtype)


def _view_reader(list_name: str) -> Callable[[int], Read]:
    """Return what makes readers of one of the machine's lists, compiled so that they are quick."""
    scope: dict[str, Any] = {}
    exec(f"def make(index): return lambda m: m.{list_name}[index]", scope)
    return scope["make"]


_READ: dict[str, Callable[[int], Read]] = {
    f"{file}_{kind}": _view_reader(f"{file}_{kind}")
    for file in "vcs"
    for kind in ("u16", "i16", "f16", "u32", "i32", "f32", "u64", "i64", "f64")
}


def _read_name(operand: Name, kind: str, context: Context) -> Read:
    dtype = DTYPES[kind]
    if operand.text in ("src_scc", "scc"):
        return lambda m: m.scc[:, None].astype(dtype)
    if operand.text in ("src_execz", "src_vccz"):
        register = Register("s", *((EXEC, 2) if "exec" in operand.text else (106, 2)))
        wide = "u64" if context.wave_size == 64 else "u32"
        inner = scalar_reader(register, wide, context)
        return lambda m: (inner(m) == 0)[:, None].astype(dtype)
    raise CompilerBug(f"the AMDGPU emulator does not know the operand {operand.text!r}")


def flushes(kind: str, context: Context, *, output: bool) -> bool:
    """Say whether MODE may tell an operand of a kind to take subnormal numbers for zero."""
    if kind not in ("f16", "f32", "f64"):
        return False
    return context.mode_varies or not context.mode & _keeps(kind, output)


def _keeps(kind: str, output: bool) -> int:
    """Return the bit of MODE that keeps subnormal numbers of a kind, as sources or as results."""
    return 1 << ((4 if kind == "f32" else 6) + output)


def flushed(compute: Read, kind: str, *, output: bool) -> Read:
    """Return what takes subnormal values for zero in the waves whose MODE says so."""
    keeps = np.uint32(_keeps(kind, output))

    def read(m: Any) -> Array:
        value = compute(m)
        keep = (m.mode & keeps) != 0
        if keep.all():
            return value
        return np.where(keep[:, None], value, floats.flush(value))

    return read


def writer(
    operand: Operand, kind: str, context: Context, half: int = 0, zero_high: bool = False
) -> Write:
    """Return what writes the active lanes of a vector register.

    Args:
        operand: From the text.
        kind: What the values are; integers wrap.
        context: The decoder's.
        half: As for `reader`.
        zero_high: Whether a 16-bit value makes the other half 0.

    Raises:
        CompilerBug: The operand is no vector register.
    """
    if isinstance(operand, Name) and operand.text == "null":
        return lambda m, value: None
    if not isinstance(operand, Register) or operand.file != "v":
        raise CompilerBug(f"{context.instruction.text}: expected to write a vector register")
    kind = plain(kind)
    index, bits = operand.index, width(kind)
    if bits == 64:
        return _write_pair(index, kind)
    if bits == 32:
        return _WRITE[f"v_{kind}"](index)
    half = half if operand.half is None else operand.half
    if kind == "bf16":
        inner = writer(operand, "u16", context, half, zero_high)
        return lambda m, value: inner(m, narrow(value))
    if zero_high and not half:
        return _write_extended(index, DTYPES[kind])
    return _WRITE[f"v_{kind}"](2 * index + half)


def narrow(values: Array) -> NDArray[np.uint16]:
    """Round float32 (or float64, once) to the bits of bf16, to nearest even."""
    if values.dtype == np.float64:
        values = formats.round_to_odd(values)
    return formats.BF16.encode(np.asarray(values, np.float32))


def _view_writer(list_name: str) -> Callable[[int], Write]:
    def make(index: int) -> Write:
        copyto = np.copyto

        def write(m: Any, value: Any) -> None:
            if m.lanes_full:
                copyto(getattr(m, list_name)[index], value, casting="unsafe")
            else:
                copyto(getattr(m, list_name)[index], value, casting="unsafe", where=m.lanes)

        return write

    return make


_WRITE: dict[str, Callable[[int], Write]] = {
    f"v_{kind}": _view_writer(f"v_{kind}") for kind in ("u16", "i16", "f16", "u32", "i32", "f32")
}


def _write_pair(index: int, kind: str) -> Write:
    low, high = _WRITE["v_u32"](index), _WRITE["v_u32"](index + 1)
    dtype = DTYPES[kind]

    def write(m: Any, value: Any) -> None:
        words = np.ascontiguousarray(value, dtype).view(np.uint32).reshape(*np.shape(value), 2)
        low(m, words[..., 0])
        high(m, words[..., 1])

    return write


def _write_extended(index: int, dtype: Any) -> Write:
    """Write 16 bits and make the other half 0."""
    whole = _WRITE["v_u32"](index)
    return lambda m, value: whole(m, np.ascontiguousarray(value, dtype).view(np.uint16))


# --- scalar operands -----------------------------------------------------------------------------


def scalar_reader(operand: Operand, kind: str, context: Context) -> Read:
    """Return what reads an operand of a scalar instruction, as (waves,) or (1,).

    Raises:
        CompilerBug: There is no such operand.
    """
    kind = plain(kind)
    bits = fixed_bits(operand, kind, context)
    if bits is not None:
        array = fixed_array(bits, kind, (1,))
        return _frozen(_modified(lambda m: array, operand, kind))
    if isinstance(operand, Name):
        inner = _read_name(operand, kind, context)
        return _modified(lambda m: inner(m)[:, 0], operand, kind)
    assert isinstance(operand, Register)
    if operand.file != "s":
        raise CompilerBug(f"{context.instruction.text}: expected scalar registers")
    index = operand.index
    if width(kind) == 64:
        if index % 2:
            raise CompilerBug(f"{context.instruction.text}: an odd pair of scalar registers")
        return _modified(_READ[f"s_{kind}"](index // 2), operand, kind)
    if width(kind) == 16:
        column = _READ[f"c_{kind}"](2 * index)
        return _modified(lambda m: column(m)[:, 0], operand, kind)
    return _modified(_READ[f"s_{kind}"](index), operand, kind)


def scalar_writer(operand: Operand, kind: str, context: Context) -> Write:
    """Return what writes a scalar register of the active waves; EXEC takes effect at once.

    Raises:
        CompilerBug: The operand is no scalar register.
    """
    kind = plain(kind)
    if isinstance(operand, Name) and operand.text == "null":
        return lambda m, value: None
    if not isinstance(operand, Register) or operand.file != "s":
        raise CompilerBug(f"{context.instruction.text}: expected to write a scalar register")
    if width(kind) == 16:
        whole, dtype = scalar_writer(operand, "u32", context), DTYPES[kind]
        return lambda m, value: whole(m, np.ascontiguousarray(value, dtype).view(np.uint16))
    wide = width(kind) == 64
    index = operand.index // 2 if wide else operand.index
    list_name = f"s_{kind}"
    copyto = np.copyto

    def write(m: Any, value: Any) -> None:
        row = getattr(m, list_name)[index]
        if m.full:
            copyto(row, value, casting="unsafe")
        else:
            copyto(row, value, casting="unsafe", where=m.active)

    if operand.index not in (EXEC, EXEC + 1):
        return write

    def write_exec(m: Any, value: Any) -> None:
        write(m, value)
        m.refresh()

    return write_exec


def mask_reader(operand: Operand, context: Context) -> Read:
    """Return what reads a lane mask from scalar registers (or a constant), as (waves, lanes)."""
    kind = "u64" if context.wave_size == 64 else "u32"
    if isinstance(operand, Register):
        index = operand.index
        return lambda m: m.read_mask(index)
    read = scalar_reader(operand, kind, context)
    return lambda m: m.lanes_of(np.broadcast_to(read(m), (m.waves,)))


def mask_writer(operand: Operand, context: Context) -> Write:
    """Return what writes a lane mask to scalar registers; inactive lanes' bits become 0."""
    if isinstance(operand, Name) and operand.text == "null":
        return lambda m, value: None
    if not isinstance(operand, Register) or operand.file != "s":
        raise CompilerBug(f"{context.instruction.text}: expected to write a lane mask")
    index = operand.index
    if index == EXEC:

        def write_exec(m: Any, value: Array) -> None:
            m.write_mask(index, value & m.lanes)
            m.refresh()

        return write_exec

    def write(m: Any, value: Array) -> None:
        if m.lanes_full and value.shape == m.lanes.shape:
            m.write_mask(index, value)
        else:
            m.write_mask(index, value & m.lanes)

    return write


def set_scc(m: Any, condition: Array) -> None:
    """Write SCC of the active waves."""
    if m.full:
        m.scc[:] = condition
    else:
        np.copyto(m.scc, condition, where=m.active)
