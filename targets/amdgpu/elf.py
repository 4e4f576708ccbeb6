"""Read the ELF files that AMD code travels in: relocatable objects and shared objects.

Only what `link` and `code_object` need: header, sections, symbols, relocations, notes. Every offset
and size is checked, so that a damaged file is a `CompilerBug` and never a wrong answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tiledsl.dialects.diagnostics import CompilerBug

EM_AMDGPU = 224
ET_REL, ET_DYN = 1, 3
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA = 1, 2, 3, 4
SHT_HASH, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 5, 6, 7, 8, 11
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK = 1, 2, 4, 0x40
SHN_UNDEF, SHN_ABS, SHN_FIRST_RESERVED = 0, 0xFFF1, 0xFF00
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STV_INTERNAL, STV_HIDDEN = 1, 2

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
NOTE = struct.Struct("<III")


class Header(NamedTuple):
    """The file header, field for field."""

    identity: bytes
    type: int
    machine: int
    version: int
    entry: int
    program_headers: int
    section_headers: int
    flags: int
    header_size: int
    program_header_size: int
    program_header_count: int
    section_header_size: int
    section_header_count: int
    names_index: int


@dataclass(frozen=True)
class Section:
    """One section with its bytes (none for SHT_NOBITS, whose `size` still counts)."""

    index: int
    name: str
    type: int
    flags: int
    address: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int
    data: bytes


@dataclass(frozen=True)
class Symbol:
    """One symbol; `section` is an index or one of the reserved numbers."""

    name: str
    value: int
    size: int
    section: int
    info: int
    other: int

    @property
    def binding(self) -> int:
        """Local, global or weak."""
        return self.info >> 4

    @property
    def visibility(self) -> int:
        """Default, internal, hidden or protected."""
        return self.other & 3


class Relocation(NamedTuple):
    """Fill the place at `offset` of a section from a symbol's address."""

    offset: int
    kind: int
    symbol: int
    addend: int


def _cut(data: bytes, offset: int, size: int, what: str) -> bytes:
    if offset + size > len(data):
        raise CompilerBug(
            f"damaged AMDGPU file: {what} at {offset} of {size} bytes, file ends at {len(data)}"
        )
    return data[offset : offset + size]


def text(table: bytes, offset: int) -> str:
    """Return the string that starts at `offset` of a string table."""
    end = table.find(b"\0", offset)
    if offset > len(table) or end < 0:
        raise CompilerBug(f"damaged AMDGPU file: no string at {offset} of {len(table)} bytes")
    return table[offset:end].decode()


class ElfFile:
    """A parsed file.

    Attributes:
        header: The file header.
        sections: All, the empty first one included, so that indices fit.
    """

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise CompilerBug("expected a 64-bit little-endian ELF file")
        self.header = Header(*HEADER.unpack(_cut(data, 0, HEADER.size, "the header")))
        if self.header.machine != EM_AMDGPU:
            raise CompilerBug(f"expected an AMDGPU file, found machine {self.header.machine}")
        if self.header.section_header_count and self.header.section_header_size != SECTION.size:
            raise CompilerBug("damaged AMDGPU file: section headers of another size")
        self.sections = self._read_sections(data)

    def _read_sections(self, data: bytes) -> list[Section]:
        table = _cut(
            data,
            self.header.section_headers,
            self.header.section_header_count * SECTION.size,
            "section headers",
        )
        raw = list(SECTION.iter_unpack(table))
        if not raw:
            return []
        if self.header.names_index >= len(raw):
            raise CompilerBug("damaged AMDGPU file: no section names")
        _, _, _, _, names_offset, names_size, *_ = raw[self.header.names_index]
        names = _cut(data, names_offset, names_size, "section names")
        sections: list[Section] = []
        for index, fields in enumerate(raw):
            name, kind, flags, address, offset, size, link, info, alignment, entry_size = fields
            label = text(names, name)
            content = _cut(data, offset, 0 if kind in (0, SHT_NOBITS) else size, label)
            sections.append(
                Section(
                    index, label, kind, flags, address, size, link, info, max(alignment, 1),
                    entry_size, content,
                )
            )  # fmt: skip
        return sections

    def section(self, index: int) -> Section:
        """Return a section by its index."""
        if index >= len(self.sections):
            raise CompilerBug(f"damaged AMDGPU file: no section {index}")
        return self.sections[index]

    def symbols(self, kind: int = SHT_SYMTAB) -> list[Symbol]:
        """Return the symbols of the table of that type (SHT_SYMTAB or SHT_DYNSYM)."""
        symbols: list[Symbol] = []
        for table in (s for s in self.sections if s.type == kind):
            names = self.section(table.link).data
            for name, info, other, section, value, size in _entries(SYMBOL, table):
                symbols.append(Symbol(text(names, name), value, size, section, info, other))
        return symbols

    def relocations(self) -> Iterator[tuple[Section, Relocation]]:
        """Yield each relocation with the section that it applies to."""
        for table in (s for s in self.sections if s.type == SHT_RELA):
            for offset, info, addend in _entries(RELOCATION, table):
                kind, symbol = info & 0xFFFFFFFF, info >> 32
                yield self.section(table.info), Relocation(offset, kind, symbol, addend)

    def notes(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield every note's owner, type and content."""
        for section in (s for s in self.sections if s.type == SHT_NOTE):
            place = 0
            while place < len(section.data):
                sizes = _cut(section.data, place, NOTE.size, "a note")
                owner_size, content_size, kind = NOTE.unpack(sizes)
                place += NOTE.size
                owner = _cut(section.data, place, owner_size, "a note's owner")
                place += -(-owner_size // 4) * 4
                yield (
                    owner.rstrip(b"\0").decode(),
                    kind,
                    _cut(section.data, place, content_size, "a note's content"),
                )
                place += -(-content_size // 4) * 4


def _entries(form: struct.Struct, table: Section) -> Iterator[tuple[int, ...]]:
    if table.size % form.size:
        raise CompilerBug(f"damaged AMDGPU file: {table.name} holds part of an entry")
    return form.iter_unpack(table.data)
