"""Link the relocatable object that LLVM emits for AMDGPU into the shared object that HIP loads.

ROCm does this with lld, a large program that few machines have; a module of ours is one object
without outside references, so what is left of linking fits here.

Contract: the input is one ET_REL object whose references all resolve inside it (internal globals
and its own functions). The output is an ET_DYN file that exports every visible symbol, kernel
descriptors (`<kernel>.kd`) first of all, and keeps the metadata note; its identity and flags are
the input's, as the loader compares them with the device. A reference that needs a symbol from
elsewhere, a global offset table or a relocation at load time is a `CompilerBug`.

The file, in order of offsets and addresses alike:

    R    ELF header, program headers, notes, .dynsym, .hash, .dynstr, read-only sections
    RX   code
    RW   .dynamic, writable sections
    -    sections that are not loaded (debug information), section names, section headers

Each of the three loaded parts begins in a page of its own. Sources: System V gABI; LLVM's "User
Guide for AMDGPU Backend", sections "ELF Code Object" and "Relocation Records".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu import elf
from tiledsl.targets.amdgpu.elf import ElfFile, Section, Symbol

_PAGE = 0x1000
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_GNU_STACK = 1, 2, 4, 0x6474E551
_PF_X, _PF_W, _PF_R = 1, 2, 4
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11
_DYNAMIC = struct.Struct("<qQ")

_DROPPED = (".note.GNU-stack", ".llvm_addrsig", ".AMDGPU.", ".llvm.")
"""Sections (by prefix) that speak to a linker only."""


@dataclass(frozen=True)
class _Relocation:
    """How one kind of relocation fills its place, from the value S + A and the place P."""

    size: int
    value: Callable[[int, int], int]
    absolute: bool = False


_RELOCATIONS = {
    3: _Relocation(8, lambda target, place: target, absolute=True),  # ABS64
    4: _Relocation(4, lambda target, place: target - place),  # REL32
    5: _Relocation(8, lambda target, place: target - place),  # REL64
    6: _Relocation(4, lambda target, place: target, absolute=True),  # ABS32
    10: _Relocation(4, lambda target, place: (target - place) & 0xFFFFFFFF),  # REL32_LO
    11: _Relocation(4, lambda target, place: (target - place) >> 32),  # REL32_HI
}


@dataclass
class _Placed:
    """An output section: what it holds and where."""

    name: str
    type: int
    flags: int
    data: bytearray
    size: int
    alignment: int
    link: str = ""
    info: int = 0
    entry_size: int = 0
    source: int | None = None  # the index in the input
    address: int = 0
    offset: int = 0

    @staticmethod
    def copy(section: Section) -> _Placed:
        """Take over a section of the input."""
        return _Placed(
            section.name,
            section.type,
            section.flags,
            bytearray(section.data),
            section.size,
            section.alignment,
            entry_size=section.entry_size,
            source=section.index,
        )


@dataclass
class _Image:
    """The output under construction: sections by part, then their places."""

    read: list[_Placed] = field(default_factory=list[_Placed])
    execute: list[_Placed] = field(default_factory=list[_Placed])
    write: list[_Placed] = field(default_factory=list[_Placed])
    unloaded: list[_Placed] = field(default_factory=list[_Placed])

    def sections(self) -> list[_Placed]:
        """All in file order."""
        return [*self.read, *self.execute, *self.write, *self.unloaded]

    def named(self, name: str) -> _Placed:
        """The section that the linker itself made under this name."""
        return next(s for s in self.sections() if s.name == name and s.source is None)


def link(object_file: bytes) -> bytes:
    """Return the loadable code object made of one relocatable object.

    Raises:
        CompilerBug: The input is not such an object, or refers to something outside.
    """
    source = ElfFile(object_file)
    if source.header.type != elf.ET_REL:
        raise CompilerBug(f"expected a relocatable object, found ELF type {source.header.type}")
    symbols = source.symbols()
    exported = _exported(source, symbols)
    image = _sort_sections(source, exported)
    headers = elf.HEADER.size + _program_header_count(image) * _PROGRAM_HEADER.size
    _place(image, headers)
    places = {s.source: s for s in image.sections() if s.source is not None}
    _relocate(source, symbols, places)
    _fill_symbols(image, exported, places)
    _fill_dynamic(image)
    return _write(source, image)


def _exported(source: ElfFile, symbols: Sequence[Symbol]) -> list[Symbol]:
    """Return the symbols that a loader may look up."""
    return [
        s
        for s in symbols
        if s.binding in (elf.STB_GLOBAL, elf.STB_WEAK)
        and s.visibility not in (elf.STV_INTERNAL, elf.STV_HIDDEN)
        and s.section != elf.SHN_UNDEF
        and s.section < elf.SHN_FIRST_RESERVED
        and source.section(s.section).flags & elf.SHF_ALLOC
    ]


def _sort_sections(source: ElfFile, exported: Sequence[Symbol]) -> _Image:
    """Choose the part each section goes to, and make those that only a shared object has."""
    names = b"\0" + b"".join(s.name.encode() + b"\0" for s in exported)
    count = len(exported) + 1
    image = _Image()
    made = [
        _table(".dynsym", elf.SHT_DYNSYM, count * elf.SYMBOL.size, 8, ".dynstr", elf.SYMBOL.size),
        _table(".hash", elf.SHT_HASH, 4 * (2 + 2 * count), 4, ".dynsym", 4),
        _table(".dynstr", elf.SHT_STRTAB, len(names), 1),
    ]
    made[0].info = 1  # the first symbol that is not local
    made[2].data[:] = names
    dynamic = _table(".dynamic", elf.SHT_DYNAMIC, 6 * _DYNAMIC.size, 8, ".dynstr", _DYNAMIC.size)
    dynamic.flags |= elf.SHF_WRITE
    image.write.append(dynamic)
    rest: list[_Placed] = []
    for section in source.sections:
        if section.name.startswith(_DROPPED):
            continue
        if section.type in (0, elf.SHT_SYMTAB, elf.SHT_STRTAB, elf.SHT_RELA):
            continue
        if section.type == elf.SHT_NOTE and section.flags & elf.SHF_ALLOC:
            image.read.append(_Placed.copy(section))
        elif not section.flags & elf.SHF_ALLOC:
            image.unloaded.append(_Placed.copy(section))
        elif section.flags & elf.SHF_EXECINSTR:
            image.execute.append(_Placed.copy(section))
        elif section.flags & elf.SHF_WRITE:
            image.write.append(_Placed.copy(section))
        else:
            rest.append(_Placed.copy(section))
    image.read += made + rest
    # A segment's zeros follow its stored bytes.
    image.write.sort(key=lambda s: s.type == elf.SHT_NOBITS)
    image.unloaded.append(_Placed(".shstrtab", elf.SHT_STRTAB, 0, bytearray(), 0, 1))
    return image


def _table(
    name: str, kind: int, size: int, alignment: int, link: str = "", entry_size: int = 0
) -> _Placed:
    return _Placed(name, kind, elf.SHF_ALLOC, bytearray(size), size, alignment, link, 0, entry_size)


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _place(image: _Image, headers: int) -> None:
    """Give every section its offset and address.

    Addresses run ahead of offsets by a page at each change of part, so that the two stay congruent
    modulo the page and no page is mapped with two protections.
    """
    offset = headers
    ahead = 0
    for number, part in enumerate((image.read, image.execute, image.write)):
        ahead = number * _PAGE
        for section in part:
            if section.alignment > _PAGE:
                raise CompilerBug(f"{section.name} wants alignment {section.alignment}")
            offset = _round_up(offset, section.alignment)
            section.offset, section.address = offset, offset + ahead
            if section.type == elf.SHT_NOBITS:
                ahead += section.size
            else:
                offset += section.size
    for section in image.unloaded:
        offset = _round_up(offset, section.alignment)
        section.offset = offset
        offset += section.size


def _relocate(source: ElfFile, symbols: Sequence[Symbol], places: dict[int, _Placed]) -> None:
    for section, relocation in source.relocations():
        placed = places.get(section.index)
        if placed is None:
            continue
        symbol = symbols[relocation.symbol]
        rule = _RELOCATIONS.get(relocation.kind)
        loaded = bool(placed.flags & elf.SHF_ALLOC)
        if rule is None or (rule.absolute and loaded):
            raise CompilerBug(
                f"AMDGPU relocation {relocation.kind} against {symbol.name!r} in {section.name} "
                "cannot be resolved before loading: give what it names internal linkage"
            )
        if relocation.offset + rule.size > len(placed.data):
            raise CompilerBug(f"damaged AMDGPU file: relocation outside {section.name}")
        target = _address(symbol, section.name, places) + relocation.addend
        value = rule.value(target, placed.address + relocation.offset)
        if not -(1 << 8 * rule.size - 1) <= value < 1 << 8 * rule.size:
            raise CompilerBug(f"AMDGPU relocation against {symbol.name!r} does not fit its field")
        field_bytes = (value % (1 << 8 * rule.size)).to_bytes(rule.size, "little")
        placed.data[relocation.offset : relocation.offset + rule.size] = field_bytes


def _address(symbol: Symbol, user: str, places: dict[int, _Placed]) -> int:
    if symbol.section == elf.SHN_ABS:
        return symbol.value
    placed = places.get(symbol.section)
    if placed is None:
        raise CompilerBug(f"{user} refers to {symbol.name!r}, which the module does not define")
    return placed.address + symbol.value


def _fill_symbols(image: _Image, exported: Sequence[Symbol], places: dict[int, _Placed]) -> None:
    """Write .dynsym and .hash: one bucket a symbol, each chain linked through symbol indices."""
    indices = {s.source: i for i, s in enumerate(image.sections(), 1) if s.source is not None}
    entries = [bytes(elf.SYMBOL.size)]
    count = len(exported) + 1
    buckets, chains = [0] * count, [0] * count
    name_offset = 1
    for index, symbol in enumerate(exported, 1):
        entries.append(
            elf.SYMBOL.pack(
                name_offset,
                symbol.info,
                symbol.other,
                indices[symbol.section],
                places[symbol.section].address + symbol.value,
                symbol.size,
            )
        )
        name_offset += len(symbol.name.encode()) + 1
        bucket = _hash(symbol.name) % count
        buckets[bucket], chains[index] = index, buckets[bucket]
    image.named(".dynsym").data[:] = b"".join(entries)
    table = [count, count, *buckets, *chains]
    image.named(".hash").data[:] = struct.pack(f"<{len(table)}I", *table)


def _hash(name: str) -> int:
    """The System V hash of a symbol's name."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _fill_dynamic(image: _Image) -> None:
    entries = [
        (_DT_HASH, image.named(".hash").address),
        (_DT_SYMTAB, image.named(".dynsym").address),
        (_DT_SYMENT, elf.SYMBOL.size),
        (_DT_STRTAB, image.named(".dynstr").address),
        (_DT_STRSZ, image.named(".dynstr").size),
        (_DT_NULL, 0),
    ]
    image.named(".dynamic").data[:] = b"".join(_DYNAMIC.pack(*entry) for entry in entries)


def _notes(image: _Image) -> list[_Placed]:
    return [s for s in image.read if s.type == elf.SHT_NOTE]


def _program_header_count(image: _Image) -> int:
    loads = 1 + bool(image.execute) + 1
    return loads + len(_notes(image)) + 2


def _program_headers(image: _Image, headers: int) -> Iterable[bytes]:
    yield _segment(_PT_LOAD, _PF_R, image.read, _PAGE, start=0)
    if image.execute:
        yield _segment(_PT_LOAD, _PF_R | _PF_X, image.execute, _PAGE)
    yield _segment(_PT_LOAD, _PF_R | _PF_W, image.write, _PAGE)
    yield _segment(_PT_DYNAMIC, _PF_R | _PF_W, [image.named(".dynamic")], 8)
    for note in _notes(image):
        yield _segment(_PT_NOTE, _PF_R, [note], note.alignment)
    yield _PROGRAM_HEADER.pack(_PT_GNU_STACK, _PF_R | _PF_W, 0, 0, 0, 0, 0, 0)


def _segment(
    kind: int, flags: int, sections: Sequence[_Placed], alignment: int, start: int | None = None
) -> bytes:
    first, last = sections[0], sections[-1]
    offset = first.offset if start is None else start
    address = first.address - (first.offset - offset)
    stored = [s for s in sections if s.type != elf.SHT_NOBITS]
    file_size = stored[-1].offset + stored[-1].size - offset if stored else 0
    memory_size = last.address + last.size - address
    return _PROGRAM_HEADER.pack(
        kind, flags, offset, address, address, file_size, memory_size, alignment
    )


def _write(source: ElfFile, image: _Image) -> bytes:
    """Assemble the file from headers and placed sections."""
    sections = image.sections()
    name_table = image.unloaded[-1]
    name_offsets: list[int] = []
    name_table.data[:] = b"\0"
    for section in sections:
        name_offsets.append(len(name_table.data))
        name_table.data += section.name.encode() + b"\0"
    name_table.size = len(name_table.data)

    program = list(_program_headers(image, elf.HEADER.size))
    end = name_table.offset + name_table.size
    table_offset = _round_up(end, 8)
    indices = {s.name: i for i, s in enumerate(sections, 1) if s.source is None}
    table = [bytes(elf.SECTION.size)]
    for section, name in zip(sections, name_offsets, strict=True):
        table.append(
            elf.SECTION.pack(
                name, section.type, section.flags, section.address, section.offset, section.size,
                indices.get(section.link, 0), section.info, section.alignment, section.entry_size,
            )
        )  # fmt: skip
    header = elf.HEADER.pack(
        source.header.identity, elf.ET_DYN, elf.EM_AMDGPU, 1, 0, elf.HEADER.size, table_offset,
        source.header.flags, elf.HEADER.size, _PROGRAM_HEADER.size, len(program),
        elf.SECTION.size, len(table), len(sections),
    )  # fmt: skip
    image_bytes = bytearray(table_offset)
    start = header + b"".join(program)
    image_bytes[: len(start)] = start
    for section in sections:
        image_bytes[section.offset : section.offset + len(section.data)] = section.data
    return bytes(image_bytes) + b"".join(table)
