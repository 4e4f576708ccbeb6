"""Read what an AMD code object says about its kernels: registers, spills, LDS, arguments.

LLVM records it as MessagePack in a note (owner "AMDGPU", type 32), in relocatable and linked files
alike; this is the only place where spills and register counts can be read without a device. The
decoder here knows the part of MessagePack that LLVM writes, which is all of it but extensions.

Source: LLVM's "User Guide for AMDGPU Backend", section "Code Object V5 Metadata".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.amdgpu.elf import ElfFile
from tiledsl.targets.driver import Resources

_NOTE_OWNER, _NOTE_TYPE = "AMDGPU", 32


@dataclass(frozen=True)
class Argument:
    """One kernel argument, hidden ones included.

    Attributes:
        name: As in the IR; "" where it has none.
        offset: Bytes from the start of the kernel arguments.
        size: Bytes.
        value_kind: "by_value", "global_buffer", "dynamic_shared_pointer" or "hidden_...".
    """

    name: str
    offset: int
    size: int
    value_kind: str

    @property
    def hidden(self) -> bool:
        """Whether the runtime fills it and not the caller."""
        return self.value_kind.startswith("hidden_")


@dataclass(frozen=True)
class KernelMetadata:
    """What the code object records of one kernel.

    Attributes:
        name: The function.
        symbol: The kernel descriptor, `<name>.kd`, which is what a loader looks up.
        vgprs: Vector registers a lane; on CDNA vector and accumulation ones together.
        agprs: Accumulation registers a lane.
        sgprs: Scalar registers a wave.
        vgpr_spills: Vector registers spilled, to scratch or to accumulation registers.
        sgpr_spills: Scalar registers spilled, to lanes of vector registers or to scratch.
        lds_bytes: LDS fixed at compile time.
        scratch_bytes: Private memory a lane.
        kernarg_bytes: Bytes of arguments.
        max_workgroup: The most threads a workgroup may have.
        wave_size: Lanes a wave.
        arguments: In order of offset.
    """

    name: str
    symbol: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    max_workgroup: int
    wave_size: int
    arguments: tuple[Argument, ...]

    @property
    def resources(self) -> Resources:
        """The same in the terms that all targets share."""
        return Resources(
            registers=self.vgprs,
            # Spills that scratch does not hold went to registers and cost no memory.
            spill_bytes=min(4 * self.vgpr_spills, self.scratch_bytes),
            local_bytes=self.scratch_bytes,
            shared_bytes=self.lds_bytes,
            scalar_registers=self.sgprs,
        )

    def occupancy(self, chip: Chip, threads: int, dynamic_lds_bytes: int = 0) -> int:
        """How many workgroups of `threads` threads a compute unit holds at once."""
        lds = self.lds_bytes + dynamic_lds_bytes
        return chip.resident_workgroups(threads, self.vgprs, lds)


def kernels(code_object: bytes) -> dict[str, KernelMetadata]:
    """Return the metadata of every kernel in a code object, linked or not, by function name.

    Raises:
        CompilerBug: The file is damaged or has no metadata.
    """
    for owner, kind, content in ElfFile(code_object).notes():
        if (owner, kind) == (_NOTE_OWNER, _NOTE_TYPE):
            document = cast(Mapping[str, Any], decode(content))
            found = [_kernel(k) for k in document.get("amdhsa.kernels", ())]
            return {kernel.name: kernel for kernel in found}
    raise CompilerBug("the AMDGPU code object has no metadata note")


def _kernel(record: Mapping[str, Any]) -> KernelMetadata:
    arguments = [
        Argument(a.get(".name", ""), a[".offset"], a[".size"], a[".value_kind"])
        for a in record.get(".args", ())
    ]
    return KernelMetadata(
        name=record[".name"],
        symbol=record[".symbol"],
        vgprs=record[".vgpr_count"],
        agprs=record.get(".agpr_count", 0),
        sgprs=record[".sgpr_count"],
        vgpr_spills=record.get(".vgpr_spill_count", 0),
        sgpr_spills=record.get(".sgpr_spill_count", 0),
        lds_bytes=record[".group_segment_fixed_size"],
        scratch_bytes=record[".private_segment_fixed_size"],
        kernarg_bytes=record[".kernarg_segment_size"],
        max_workgroup=record[".max_flat_workgroup_size"],
        wave_size=record[".wavefront_size"],
        arguments=tuple(sorted(arguments, key=lambda a: a.offset)),
    )


Decoded = None | bool | int | float | str | bytes | Sequence["Decoded"] | Mapping[str, "Decoded"]


def decode(data: bytes) -> Decoded:
    """Decode one MessagePack value that fills `data`.

    Raises:
        CompilerBug: It is cut short, followed by more, or holds an extension type.
    """
    reader = _Reader(data)
    value = reader.value()
    if reader.place != len(data):
        raise CompilerBug(f"AMDGPU metadata ends at byte {reader.place} of {len(data)}")
    return value


# Big endian, as everything in MessagePack: tag to (struct code, size).
_SCALARS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_BINARIES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_ARRAYS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}


class _Reader:
    """A place in MessagePack data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def value(self) -> Decoded:
        """Read the value that starts here."""
        tag = self._take(1)[0]
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self._map(tag & 15)
        if tag < 0xA0:
            return self._array(tag & 15)
        if tag < 0xC0:
            return self._take(tag & 31).decode()
        return self._tagged(tag)

    def _tagged(self, tag: int) -> Decoded:
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _SCALARS:
            return self._number(_SCALARS[tag])
        if tag in _TEXTS:
            return self._take(self._number(_TEXTS[tag])).decode()
        if tag in _BINARIES:
            return self._take(self._number(_BINARIES[tag]))
        if tag in _ARRAYS:
            return self._array(self._number(_ARRAYS[tag]))
        if tag in _MAPS:
            return self._map(self._number(_MAPS[tag]))
        raise CompilerBug(f"AMDGPU metadata holds a MessagePack value of type {tag:#x}")

    def _take(self, count: int) -> bytes:
        piece = self.data[self.place : self.place + count]
        if len(piece) < count:
            raise CompilerBug(f"AMDGPU metadata is cut short at byte {len(self.data)}")
        self.place += count
        return piece

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _array(self, count: int) -> list[Decoded]:
        return [self.value() for _ in range(count)]

    def _map(self, count: int) -> dict[str, Decoded]:
        pairs = [(self.value(), self.value()) for _ in range(count)]
        return {str(key): value for key, value in pairs}
