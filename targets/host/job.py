"""What the driver and the compiled code share: the description of one launch, in C's layout."""

from __future__ import annotations

import struct

_FIELDS = ("next", "end", "chunk", "arguments", "print", "fail", "nx", "ny", "nz")
_CODES = "qqqQQQiii"


class Job:
    """One launch as the threads that run it see it.

    Fields: `next` is the linear index of the first program that nobody has claimed, `end` one past
    the last, `chunk` how many a thread claims at once; `arguments` is the address of the packed
    arguments; `print` and `fail` are the addresses of the functions that `debug` describes; `nx`,
    `ny`, `nz` is the grid.
    """

    FORMAT = struct.Struct("=" + _CODES)
    SIZE = FORMAT.size

    @staticmethod
    def offset(field: str) -> int:
        """Return where a field lies, in bytes."""
        return struct.calcsize("=" + _CODES[: _FIELDS.index(field)])
