"""What compiled code calls in Python: printing, and reporting a failed assertion.

`debug` describes the records. The functions are called on any thread of the pool, which holds the
interpreter's lock meanwhile, so a line is printed whole.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import cache

import ml_dtypes
import numpy as np

from tiledsl.targets.host.job import PrintFormat

_Record = Mapping[int, int]
"""A pointer to i64s: ctypes has no public name for its type."""
_Function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64))
_TEXT_FIELDS = 6
"""Fields of a record before an element's index: job, text, its length, and the program's place."""
_FLOATS: dict[str, object] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
}


class Callbacks:
    """The functions and what they were told.

    Attributes:
        print: Address of the function that prints.
        fail: Address of the function that takes note of a failure.
        failures: The first failure of each job, by its address.
    """

    def __init__(self) -> None:
        self._functions = (_Function(_print), _Function(self._fail))
        self.print, self.fail = (
            ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions
        )
        self.failures: dict[int, str] = {}

    def _fail(self, record: _Record) -> None:
        job, program = record[0], _numbers(record, 3, _TEXT_FIELDS)
        self.failures.setdefault(job, f"{_text(record)} (program {program})")


@cache
def callbacks() -> Callbacks:
    """Return the process's callbacks."""
    return Callbacks()


def _numbers(record: _Record, start: int, end: int) -> tuple[int, ...]:
    return tuple(record[i] for i in range(start, end))


def _text(record: _Record) -> str:
    return ctypes.string_at(record[1], record[2]).decode()


def _print(record: _Record) -> None:
    format_ = PrintFormat.of_text(_text(record))
    program = _numbers(record, 3, _TEXT_FIELDS)
    end = _TEXT_FIELDS + format_.rank
    index = _numbers(record, _TEXT_FIELDS, end)
    words = [f"pid {program} idx {index} {format_.prefix}"]
    if format_.type:
        words.append(show(record[end], format_))
    sys.stdout.write(" ".join(words) + "\n")


def show(bits: int, format_: PrintFormat) -> str:
    """Return an element's bits, in an i64, as text."""
    float_ = _FLOATS.get(format_.type)
    if float_ is not None:
        dtype = np.dtype(float_)  # type: ignore[call-overload]
        data = (bits & (1 << 64) - 1).to_bytes(8, "little")[: dtype.itemsize]
        return str(np.frombuffer(data, dtype)[0])
    width = int(format_.type[1:])
    bits &= (1 << width) - 1
    if format_.hex:
        return f"0x{bits:0{max(1, width // 4)}x}"
    if width == 1:
        return str(bool(bits))
    return str(bits - (1 << width) if format_.signed and bits >> (width - 1) else bits)
