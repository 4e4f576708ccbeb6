import importlib.util
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledsl as tile
from tests.kernels.good_kernels import argmax_kernel
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.assemble import emit
from tiledsl.targets.amdgpu.chips import CHIPS as CHIP_TABLE
from tiledsl.targets.amdgpu.elf import SHF_ALLOC, SHN_FIRST_RESERVED, ElfFile, Symbol
from tiledsl.targets.amdgpu.link import link

from .samples import CHIPS, SCALE, TABLES, compiled

DESCRIPTOR_ENTRY = 16
"""Where a kernel descriptor holds the distance from itself to the code."""


@dataclass(frozen=True)
class Loaded:
    """A linked file as a loader has it: memory, protections and symbols."""

    memory: bytes
    protection: bytes
    symbols: dict[str, Symbol]

    def read(self, address: int, size: int) -> bytes:
        return self.memory[address : address + size]


def load(file: bytes) -> Loaded:
    """Map a shared object as a strict loader would, refusing whatever is irregular."""
    (offset,) = struct.unpack_from("<Q", file, 32)
    size, count = struct.unpack_from("<HH", file, 54)
    assert size == 56
    headers = [struct.unpack_from("<IIQQQQQQ", file, offset + 56 * i) for i in range(count)]
    loads = [h for h in headers if h[0] == 1]
    end = max(h[3] + h[6] for h in loads)
    memory, protection = bytearray(end), bytearray(end)
    past = 0
    for _, flags, where, address, physical, stored, size, alignment in loads:
        assert address == physical
        assert alignment == 4096
        assert where % alignment == address % alignment
        # Sorted, and no two protections in one page.
        assert address // 4096 >= -(-past // 4096)
        assert stored <= size
        assert where + stored <= len(file)
        memory[address : address + stored] = file[where : where + stored]
        protection[address : address + size] = bytes([flags]) * size
        past = address + size
    for kind, _, where, address, _, stored, size, _ in headers:
        if kind in (2, 4):  # PT_DYNAMIC and PT_NOTE lie in what is loaded
            assert memory[address : address + size] == file[where : where + stored]
    dynamic = next(h for h in headers if h[0] == 2)
    return Loaded(bytes(memory), bytes(protection), look_up_all(bytes(memory), dynamic[3]))


def look_up_all(memory: bytes, dynamic: int) -> dict[str, Symbol]:
    """Find symbols through .dynamic and .hash alone, as a loader does."""
    tags: dict[int, int] = {}
    while (entry := struct.unpack_from("<qQ", memory, dynamic))[0]:
        tags[entry[0]] = entry[1]
        dynamic += 16
    hashes, strings, table = tags[4], tags[5], tags[6]
    assert tags[11] == 24
    buckets, chains = struct.unpack_from("<II", memory, hashes)
    found: dict[str, Symbol] = {}
    for bucket in range(buckets):
        (index,) = struct.unpack_from("<I", memory, hashes + 8 + 4 * bucket)
        while index:
            name, info, other, section, value, size = struct.unpack_from(
                "<IBBHQQ", memory, table + 24 * index
            )
            text = memory[strings + name : memory.index(b"\0", strings + name)].decode()
            assert system_v_hash(text) % buckets == bucket
            found[text] = Symbol(text, value, size, section, info, other)
            (index,) = struct.unpack_from("<I", memory, hashes + 8 + 4 * (buckets + index))
    assert len(found) == chains - 1
    return found


def system_v_hash(name: str) -> int:
    h = 0
    for byte in name.encode():
        h = (h << 4) + byte
        if g := h & 0xF0000000:
            h ^= g >> 24
        h &= 0x0FFFFFFF
    return h


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("text", [SCALE, TABLES], ids=["scale", "tables"])
def test_a_strict_loader_finds_each_descriptor_pointing_at_its_code(text: str, chip: str):
    source = ElfFile(compiled(text, chip))
    code = next(s for s in source.sections if s.name == ".text")
    loaded = load(link(compiled(text, chip)))
    kernels = [s.name for s in source.symbols() if s.info & 15 == 2]
    assert kernels
    for kernel in kernels:
        descriptor, function = loaded.symbols[f"{kernel}.kd"], loaded.symbols[kernel]
        assert descriptor.size == 64
        assert descriptor.value % 64 == 0
        (distance,) = struct.unpack("<q", loaded.read(descriptor.value + DESCRIPTOR_ENTRY, 8))
        assert descriptor.value + distance == function.value
        assert function.value % 256 == 0
        assert set(loaded.protection[function.value : function.value + function.size]) == {5}
        original = next(s for s in source.symbols() if s.name == kernel)
        linked = loaded.read(function.value, function.size)
        plain = code.data[original.value : original.value + original.size]
        if text == SCALE:  # no relocation in its code
            assert linked == plain
        else:
            assert len(linked) == len(plain)


@pytest.mark.parametrize("chip", CHIPS)
def test_identity_and_flags_are_the_inputs(chip: str):
    before, after = (
        ElfFile(compiled(SCALE, chip)).header,
        ElfFile(link(compiled(SCALE, chip))).header,
    )
    assert after.identity == before.identity
    assert after.flags == before.flags
    assert (before.type, after.type) == (1, 3)


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
def test_code_reaches_globals_at_their_distance(chip: str):
    source = ElfFile(compiled(TABLES, chip))
    file = link(compiled(TABLES, chip))
    loaded, linked = load(file), ElfFile(file)
    names = {s.name: s for s in linked.sections}
    base = {s.index: names[s.name].address for s in source.sections if s.name in names}
    pairs = list(source.relocations())
    reached: set[str] = set()
    for section, low in pairs:
        if low.kind != 10:
            continue
        # The low half stands 8 bytes before the high one: an add and an add with carry.
        high = next(r for _, r in pairs if r.kind == 11 and r.offset > low.offset)
        symbol = source.symbols()[low.symbol]
        place = base[section.index] + low.offset
        words = loaded.read(place, 4) + loaded.read(base[section.index] + high.offset, 4)
        (distance,) = struct.unpack("<q", words)
        reached.add(symbol.name or source.section(symbol.section).name)
        assert place + distance - low.addend == base[symbol.section] + symbol.value
    assert reached == {"table", ".data", ".bss"}


def test_constants_are_read_only_and_zeroed_globals_take_no_room_in_the_file():
    file = link(compiled(TABLES, "gfx942"))
    loaded, linked = load(file), ElfFile(file)
    sections = {s.name: s for s in linked.sections}
    table, zeros, data = sections[".rodata.cst16"], sections[".bss"], sections[".data"]
    assert loaded.read(table.address, 16) == struct.pack("<4f", 1, 2, 3.5, 4)
    assert loaded.protection[table.address] == 4
    assert loaded.read(data.address, 4) == b"\x07\0\0\0"
    assert loaded.protection[data.address] == 6
    assert loaded.read(zeros.address, 1200) == bytes(1200)
    assert len(loaded.memory) - zeros.address == 1200


def test_the_same_object_gives_the_same_file():
    assert link(compiled(TABLES, "gfx942")) == link(compiled(TABLES, "gfx942"))


@pytest.mark.parametrize("chip", CHIPS)
def test_llvms_reader_has_no_complaint(chip: str, tmp_path: Path):
    tools = importlib.util.find_spec("llvm")  # the package of LLVM's tools, one of ours
    assert tools is not None
    assert tools.submodule_search_locations
    reader = Path(tools.submodule_search_locations[0]) / "bin" / "llvm-readelf"
    file = tmp_path / "code.hsaco"
    file.write_bytes(link(compiled(TABLES, chip)))
    read = subprocess.run(
        [reader, "--all", "--dyn-symbols", file], capture_output=True, text=True, check=True
    )
    assert read.stderr == ""
    assert "amdhsa.target:   amdgcn-amd-amdhsa--" + chip in read.stdout
    assert re.search(r"OBJECT +GLOBAL .* lookup\.kd", read.stdout)


def linker() -> list[str] | None:
    """Return the command of an ld.lld new enough for AMD's code object version 6."""
    for name in ("ld.lld", *(f"ld.lld-{v}" for v in range(25, 18, -1))):
        if path := shutil.which(name):
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            found = re.search(r"LLD (\d+)", version)
            if found and int(found[1]) >= 19:
                return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "ld.lld"]
    return None


needs_lld = pytest.mark.skipif(linker() is None, reason="no ld.lld of LLVM 19 or later")


@cache
def compiled_argmax(chip: str) -> bytes:
    """Return the relocatable object of a whole kernel, with its tables of lines."""
    signature = {"x": "*fp32:16", "out": "*i32:16", "rows": "i32"}
    signature |= {"columns": "i32", "stride": "i32"}
    made = tile.compile(argmax_kernel, signature, {"M": 64, "N": 32}, target=chip)
    found = emit(str(made.asm["llvm"]), CHIP_TABLE[chip]).object
    assert found is not None
    return found


OBJECTS = {
    "scale": partial(compiled, SCALE),
    "tables": partial(compiled, TABLES),
    "argmax": compiled_argmax,
}


@dataclass(frozen=True)
class Pair:
    """One object, as lld links it and as we do."""

    source: ElfFile
    theirs: bytes
    ours: bytes


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    name, chip = request.param
    given, made = tmp_path / "k.o", tmp_path / "k.so"
    given.write_bytes(OBJECTS[name](chip))
    command = linker()
    assert command is not None
    subprocess.run([*command, "-shared", given, "-o", made], check=True)
    return Pair(ElfFile(given.read_bytes()), made.read_bytes(), link(given.read_bytes()))


pairs = pytest.mark.parametrize(
    "pair",
    [pytest.param((name, chip), id=f"{name}-{chip}") for name in OBJECTS for chip in CHIPS],
    indirect=True,
)


@needs_lld
@pairs
def test_lld_gives_the_same_identity_notes_and_exports(pair: Pair):
    theirs, ours = ElfFile(pair.theirs), ElfFile(pair.ours)
    assert ours.header[:5] == theirs.header[:5]  # to the entry: none
    assert ours.header.flags == theirs.header.flags
    assert list(ours.notes()) == list(theirs.notes()) != []

    def exported(file: bytes) -> dict[str, tuple[int, int, int, int]]:
        """Give size, kind, visibility and protection of each symbol that a loader finds."""
        loaded = load(file)
        return {
            name: (s.size, s.info, s.other, loaded.protection[s.value])
            for name, s in loaded.symbols.items()
        }

    assert exported(pair.ours) == exported(pair.theirs) != {}


def program_headers(file: bytes) -> list[tuple[int, int, int]]:
    """Return type, flags and alignment of each program header."""
    (offset,) = struct.unpack_from("<Q", file, 32)
    _, count = struct.unpack_from("<HH", file, 54)
    found = [struct.unpack_from("<IIQQQQQQ", file, offset + 56 * i) for i in range(count)]
    return [(kind, flags, alignment) for kind, flags, *_, alignment in found]


@needs_lld
@pairs
def test_lld_gives_the_same_program_headers_but_for_two_that_hip_does_not_need(pair: Pair):
    optional = {6, 0x6474E552}  # PT_PHDR; PT_GNU_RELRO, and what it protects in a part of its own
    theirs = {one for one in program_headers(pair.theirs) if one[0] not in optional}
    ours = program_headers(pair.ours)
    assert set(ours) == theirs
    assert len(set(ours)) == len(ours)


RELOCATED = {3: 8, 4: 4, 5: 8, 6: 4, 10: 4, 11: 4}
"""How many bytes each kind of relocation fills."""


def bases(source: ElfFile, linked: ElfFile) -> dict[int, int]:
    """Return where each section of the input that is loaded went, by its index."""
    placed = {s.name: s.address for s in linked.sections}
    loaded = (s for s in source.sections if s.flags & SHF_ALLOC and s.name in placed)
    found = {s.index: placed[s.name] for s in loaded}
    addresses = {s.name: s.value for s in linked.symbols() if s.name}
    for symbol in source.symbols():  # lld puts some sections into one, but names all symbols
        if symbol.name in addresses and 0 < symbol.section < SHN_FIRST_RESERVED:
            found[symbol.section] = addresses[symbol.name] - symbol.value
    return found


@needs_lld
@pairs
def test_lld_fills_the_same_bytes_with_the_same_targets(pair: Pair):
    def contents(file: bytes) -> tuple[dict[str, bytes], list[tuple[str, int, str, int]]]:
        """Give loaded sections without what is relocated, and the relocations' targets."""
        loaded, base = load(file), bases(pair.source, ElfFile(file))
        sections = {
            s.index: bytearray(loaded.read(base[s.index], s.size))
            for s in pair.source.sections
            if s.flags & SHF_ALLOC and s.size
        }
        targets: list[tuple[str, int, str, int]] = []
        relocations = [(s, r) for s, r in pair.source.relocations() if s.index in sections]
        highs = {(s.index, r.offset): r for s, r in relocations if r.kind == 11}
        for section, one in relocations:
            held, size = sections[section.index], RELOCATED[one.kind]
            if one.kind != 11:
                distance = held[one.offset : one.offset + size]
                if one.kind == 10:  # the high half is in the next instruction
                    high = min(o for i, o in highs if i == section.index and o > one.offset)
                    distance = distance + held[high : high + 4]
                value = int.from_bytes(distance, "little", signed=True)
                target = value + base[section.index] + one.offset - one.addend
                symbol = pair.source.symbols()[one.symbol]
                name = symbol.name or pair.source.section(symbol.section).name
                targets.append((section.name, one.offset, name, target - base[symbol.section]))
        for section, one in relocations:
            size = RELOCATED[one.kind]
            sections[section.index][one.offset : one.offset + size] = bytes(size)
        names = {s.index: s.name for s in pair.source.sections}
        return {names[index]: bytes(held) for index, held in sections.items()}, targets

    assert contents(pair.ours) == contents(pair.theirs)
    assert contents(pair.ours)[1]


def test_a_reference_to_elsewhere_is_a_compiler_bug():
    text = """
declare float @__ocml_erf_f32(float)
define amdgpu_kernel void @k(ptr addrspace(1) %p, float %x) {
  %y = call float @__ocml_erf_f32(float %x)
  store float %y, ptr addrspace(1) %p
  ret void
}
"""
    with pytest.raises(CompilerBug, match=r"__ocml_erf_f32.*(does not define|internal linkage)"):
        link(compiled(text, "gfx942"))


def test_a_visible_global_is_a_compiler_bug_that_says_what_to_change():
    text = """
@seen = addrspace(1) global i32 7
define amdgpu_kernel void @k(ptr addrspace(1) %p) {
  %y = load volatile i32, ptr addrspace(1) @seen
  store i32 %y, ptr addrspace(1) %p
  ret void
}
"""
    with pytest.raises(CompilerBug, match=r"'seen'.*give what it names internal linkage"):
        link(compiled(text, "gfx942"))


def test_only_amd_relocatable_objects_are_linked():
    with pytest.raises(CompilerBug, match="expected a 64-bit little-endian ELF file"):
        link(b"not an object")
    with pytest.raises(CompilerBug, match="expected a relocatable object, found ELF type 3"):
        link(link(compiled(SCALE, "gfx942")))
    other = bytearray(compiled(SCALE, "gfx942"))
    other[18:20] = b"\x3e\0"
    with pytest.raises(CompilerBug, match="expected an AMDGPU file, found machine 62"):
        link(bytes(other))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2000))
def test_a_file_cut_short_is_a_compiler_bug(length: int):
    whole = compiled(SCALE, "gfx942")
    with pytest.raises(CompilerBug):
        link(whole[: min(length, len(whole) - 1)])
