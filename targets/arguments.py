"""Pack kernel arguments into the bytes that both vendors' drivers copy to a launch.

PTX parameters and AMDGPU kernel arguments have one layout: declaration order, each value little
endian at its natural alignment, nothing after the last one. So one packer serves both, and a driver
need not know types.

Contract: kinds are MLIR's type names ("i32", "f16", "bf16", "f8E4M3FN", ...) and "ptr" (a 64-bit
address), "bool" (one byte) and "tensormap" (128 bytes at 64, NVIDIA's TMA descriptor). A layout is
made once a kernel; `ArgumentLayout.pack` is the only thing on the launch path. Floats round to
nearest even and overflow to infinity, as NumPy casts them; an integer that does not fit is a
`KernelError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import ml_dtypes
import numpy as np

from tiledsl.dialects.diagnostics import CompilerBug, KernelError

Value = int | float | bytes | np.generic

_NUMBERS = (int, float, np.generic)


def _round(value: Value, to: type[np.generic]) -> np.generic:
    """Round to nearest even; what is too large becomes infinite or the type's NaN, as in NumPy."""
    if not isinstance(value, _NUMBERS):  # None and text too: callers are not all type checked
        raise TypeError
    with np.errstate(over="ignore"):
        try:
            wide = np.float64(value)
        except OverflowError:  # an integer beyond even f64
            wide = np.copysign(np.inf, -1 if str(value).startswith("-") else 1)
        return wide.astype(to)


def _bits(to: type[np.generic], value: Value) -> int:
    """Return the bits of `value` rounded to type `to`, as an unsigned integer."""
    rounded = value if isinstance(value, to) else _round(value, to)
    return int.from_bytes(rounded.tobytes(), "little")


def _descriptor(value: Value) -> Value:
    """Refuse what `struct` would cut or fill up to 128 bytes."""
    if not isinstance(value, bytes) or len(value) != 128:
        raise struct.error
    return value


@dataclass(frozen=True)
class Kind:
    """How values of one kind lie in memory.

    Attributes:
        code: The letter (and count) that `struct` packs it with.
        size: Bytes.
        alignment: Bytes.
        prepare: What to do to a value before `struct` can pack it.
    """

    code: str
    size: int
    alignment: int
    prepare: Callable[[Value], Value] | None = None


def _rounded(code: str, size: int, to: type[np.generic]) -> Kind:
    return Kind(code, size, size, partial(_bits, to))


KINDS: dict[str, Kind] = {
    "ptr": Kind("Q", 8, 8),
    "bool": Kind("?", 1, 1),
    "i1": Kind("?", 1, 1),
    **{
        f"{sign}{bits}": Kind(letter if sign == "i" else letter.upper(), bits // 8, bits // 8)
        for bits, letter in ((8, "b"), (16, "h"), (32, "i"), (64, "q"))
        for sign in ("i", "ui")
    },
    "f64": Kind("d", 8, 8),
    "f32": Kind("f", 4, 4),
    "f16": Kind("e", 2, 2),
    "bf16": _rounded("H", 2, ml_dtypes.bfloat16),
    "f8E4M3FN": _rounded("B", 1, ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": _rounded("B", 1, ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": _rounded("B", 1, ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": _rounded("B", 1, ml_dtypes.float8_e5m2fnuz),
    "tensormap": Kind("128s", 128, 64, _descriptor),
}

_OVERFLOWING: dict[str, type[np.generic]] = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}
"""Kinds for which `struct` refuses a finite value that NumPy rounds to infinity."""


@dataclass(frozen=True)
class ArgumentLayout:
    """Where each argument of one kernel lies.

    Attributes:
        kinds: One a parameter, in declaration order.
        base: Where the arguments will begin: alignments count from there, not from their start.
        offsets: Bytes from the start of the arguments.
        size: Bytes in all, without padding after the last one.
    """

    kinds: tuple[str, ...]
    base: int = 0
    offsets: tuple[int, ...] = field(init=False)
    size: int = field(init=False)
    _struct: struct.Struct = field(init=False, repr=False, compare=False)
    _prepared: tuple[tuple[int, Callable[[Value], Value]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(KINDS))
        if unknown:
            raise CompilerBug(f"expected argument kinds among {sorted(KINDS)}, found {unknown}")
        offsets: list[int] = []
        codes = ["<"]
        end = 0
        for kind in (KINDS[name] for name in self.kinds):
            start = -(-(self.base + end) // kind.alignment) * kind.alignment - self.base
            codes.append(f"{start - end}x{kind.code}")
            offsets.append(start)
            end = start + kind.size
        prepares = enumerate(KINDS[name].prepare for name in self.kinds)
        for name, value in (
            ("offsets", tuple(offsets)),
            ("size", end),
            ("_struct", struct.Struct("".join(codes))),
            ("_prepared", tuple((i, prepare) for i, prepare in prepares if prepare)),
        ):
            object.__setattr__(self, name, value)

    def pack(self, values: Sequence[Value]) -> bytes:
        """Return the arguments' bytes, `size` of them.

        Args:
            values: One a kind: an integer, a float (a NumPy scalar too), or for "tensormap" bytes.

        Raises:
            KernelError: A value does not fit its kind, or their number is wrong.
        """
        try:
            prepared = values
            if self._prepared:
                prepared = list(values)
                for index, prepare in self._prepared:
                    prepared[index] = prepare(prepared[index])
            return self._struct.pack(*prepared)
        except (struct.error, OverflowError, IndexError, ValueError, TypeError):
            return b"".join(self._fields(values))

    def _fields(self, values: Sequence[Value]) -> Iterator[bytes]:
        """Pack one by one: round what overflows, name what cannot be packed at all."""
        if len(values) != len(self.kinds):
            raise KernelError(f"expected {len(self.kinds)} arguments, found {len(values)}")
        end = 0
        for index, (name, value) in enumerate(zip(self.kinds, values, strict=True)):
            kind = KINDS[name]
            try:
                if name in _OVERFLOWING:
                    value = cast(float, _round(value, _OVERFLOWING[name]).item())
                elif kind.prepare is not None:
                    value = kind.prepare(value)
                yield bytes(self.offsets[index] - end) + struct.pack("<" + kind.code, value)
            except (struct.error, OverflowError, ValueError, TypeError) as error:
                wanted = "128 bytes" if name == "tensormap" else f"a value of {name}"
                raise KernelError(
                    f"argument {index}: expected {wanted}, found {value!r}"
                ) from error
            end = self.offsets[index] + kind.size


def pack(arguments: Sequence[tuple[str, Value]]) -> bytes:
    """Pack once: (kind, value) pairs. Where a kernel is launched again, keep its layout."""
    return ArgumentLayout(tuple(kind for kind, _ in arguments)).pack([v for _, v in arguments])
