"""What the driver and the compiled code share: descriptions of a launch and of a printed line."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

_FIELDS = ("next", "end", "chunk", "arguments", "print", "fail", "nx", "ny", "nz")
_CODES = "qqqQQQiii"


class Job:
    """One launch as the threads that run it see it, in C's layout.

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


@dataclass(frozen=True)
class PrintFormat:
    """How an element is printed.

    Attributes:
        prefix: The author's words.
        type: Name of the element's type; "" where there is no value.
        rank: Dimensions of the tile.
        signed: Whether an integer is signed.
        hex: Whether to print it as hexadecimal.
    """

    prefix: str
    type: str
    rank: int
    signed: bool
    hex: bool

    def to_text(self) -> str:
        """Return this as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_text(text: str) -> PrintFormat:
        """Return what `to_text` made text of."""
        return PrintFormat(**json.loads(text))
