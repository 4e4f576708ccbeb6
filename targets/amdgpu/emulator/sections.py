"""Read a whole text: what is code, the values of kernel descriptors, and constant data.

Of the directives of LLVM's assembly only those are read that say something to who executes it. Data
that holds addresses of symbols is refused: none of our kernels has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.text import Parsed, parse_instruction
from tiledsl.targets.gpu.source_lines import Source, source_lines


@dataclass(frozen=True)
class Label:
    """A place in the code."""

    name: str


@dataclass
class Data:
    """A constant or variable of the module.

    Attributes:
        name: Its symbol.
        content: Its bytes.
        align: Its alignment in bytes.
    """

    name: str
    content: bytearray = field(default_factory=bytearray)
    align: int = 1


@dataclass
class Module:
    """A whole text.

    Attributes:
        code: Instructions and labels of the text section, in order.
        kernels: Of each kernel, the values of its descriptor (`.amdhsa_` left out of their names).
        data: Every symbol with bytes.
    """

    code: list[Parsed | Label] = field(default_factory=list[Parsed | Label])
    kernels: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    data: list[Data] = field(default_factory=list[Data])


_LABEL = re.compile(r'\s*("[^"]*"|[\w.$@]+):\s*$')


_DATA_BYTES = {".byte": 1, ".short": 2, ".hword": 2, ".2byte": 2, ".long": 4, ".4byte": 4,
               ".int": 4, ".quad": 8, ".8byte": 8}  # fmt: skip


def parse_module(text: str) -> Module:
    """Read a whole text.

    Raises:
        CompilerBug: Something in it is not understood.
    """
    module = Module()
    reader = _ModuleReader(module)
    for line, source in zip(text.splitlines(), source_lines(text), strict=True):
        reader.line(_without_comment(line), source)
    module.data = [one for one in module.data if one.content]
    return module


def _without_comment(line: str) -> str:
    if ";" not in line:
        return line.strip()
    quoted = False
    for position, letter in enumerate(line):
        if letter == '"':
            quoted = not quoted
        elif letter == ";" and not quoted:
            return line[:position].strip()
    return line.strip()


class _ModuleReader:
    """Where in a text the reading is."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._in_code = True
        self._descriptor: dict[str, str] | None = None
        self._skipping = False
        self._align = 1

    def line(self, line: str, source: Source | None) -> None:
        """Read one line without its comment."""
        if line.startswith(".amdgpu_metadata"):
            self._skipping = True
        elif line.startswith(".end_amdgpu_metadata"):
            self._skipping = False
        elif not line or self._skipping:
            return
        elif (label := _LABEL.match(line)) is not None:
            self._label(label[1].strip('"'))
        elif line.startswith("."):
            self._directive(line)
        elif self._in_code:
            self._module.code.append(parse_instruction(line, source))
        else:
            raise CompilerBug(f"AMDGPU assembly has an instruction outside of its code: {line}")

    def _label(self, name: str) -> None:
        if self._in_code:
            self._module.code.append(Label(name))
        else:
            self._module.data.append(Data(name, align=self._align))
            self._align = 1

    def _directive(self, line: str) -> None:
        word, _, rest = line.replace("\t", " ").partition(" ")
        rest = rest.strip()
        if self._descriptor is not None and word.startswith(".amdhsa_"):
            self._descriptor[word.removeprefix(".amdhsa_")] = rest
        elif word == ".amdhsa_kernel":
            self._descriptor = self._module.kernels.setdefault(rest, {})
        elif word == ".end_amdhsa_kernel":
            self._descriptor = None
        elif word == ".text":
            self._in_code = True
        elif word in (".data", ".rodata", ".bss"):
            self._in_code = False
        elif word == ".section":
            self._in_code = rest.startswith(".text")
        elif not self._in_code:
            self._data(word, rest)

    def _data(self, word: str, rest: str) -> None:
        """Read a directive outside of the code; those that make no bytes are passed over."""
        if word == ".p2align":
            self._align = 1 << int(rest.split(",")[0], 0)
            return
        content = self._content(word, rest)
        if content and self._module.data:
            self._module.data[-1].content += content

    def _content(self, word: str, rest: str) -> bytes:
        if word in _DATA_BYTES:
            return b"".join(_integers(rest, _DATA_BYTES[word]))
        if word in (".zero", ".space", ".skip"):
            size, *fill = (int(one, 0) for one in rest.split(","))
            return bytes([fill[0] & 255 if fill else 0]) * size
        if word in (".ascii", ".asciz", ".string"):
            return _string(rest) + (b"" if word == ".ascii" else b"\0")
        if word == ".fill":
            repeat, size, value = (int(one, 0) for one in rest.split(","))
            return (value & (1 << 8 * size) - 1).to_bytes(size, "little") * repeat
        return b""


def _integers(text: str, size: int) -> Iterator[bytes]:
    for piece in text.split(","):
        try:
            value = int(piece, 0)
        except ValueError as error:
            raise CompilerBug(f"AMDGPU data refers to {piece.strip()!r}, not a number") from error
        yield (value & (1 << 8 * size) - 1).to_bytes(size, "little")


_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)


_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f"}


def _string(text: str) -> bytes:
    def meant(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 255]) if code.isdigit() else _ESCAPED.get(code, code)

    return _ESCAPE.sub(meant, text.strip().strip('"').encode())
