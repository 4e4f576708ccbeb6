"""NVIDIA's chips as a table: what each can hold and which instructions it has.

Passes, lowering and the emulator ask this table and never test a chip by name. A chip is compared
by its number: `chip.number >= 90`.

Sources: CUDA C++ Programming Guide, "Compute Capabilities" (limits); PTX ISA, each instruction's
"Target ISA Notes" and "PTX ISA Notes" (capabilities and the PTX version that each needs).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dialects.diagnostics import KernelError

WARP_SIZE = 32
MAX_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_REGISTERS_PER_THREAD = 255
STATIC_SHARED_BYTES = 48 << 10
"""Shared memory that a kernel can have without asking the driver for more."""

_RESERVED_SHARED_BYTES = 1 << 10
"""What the system takes of a multiprocessor's shared memory for each resident block (sm_80 on)."""


@dataclass(frozen=True)
class Chip:
    """One NVIDIA architecture.

    Attributes:
        number: Major times ten plus minor: 90 for sm_90a.
        name: LLVM's and ptxas's name. A trailing "a" runs on exactly this architecture; without it,
            the PTX also runs on every later one.
        ptx: The PTX version to emit, times ten: high enough for every instruction the chip has,
            else as low as possible, so that older drivers take it.
        shared_bytes: The most shared memory one block can have (dynamic, opt-in).
        shared_bytes_per_sm: What a multiprocessor has for all its blocks.
        warps_per_sm: Resident warps.
        blocks_per_sm: Resident blocks.
        registers_per_sm: 32-bit registers, shared by the resident threads.
        cp_async: cp.async copies global to shared memory without registers.
        ldmatrix: ldmatrix, and mma.sync on f16, bf16, tf32, f64 and integers.
        stmatrix: stmatrix.
        fp8_convert: cvt between e4m3/e5m2 and f16/f32.
        fp8_mma: mma.sync (or wgmma) on fp8 operands.
        native_bf16: add, sub, mul of bf16 in hardware, not only fma.
        wgmma: wgmma, warpgroup matrix instructions on shared memory.
        tcgen05: tcgen05, matrix instructions on tensor memory.
        tma: cp.async.bulk.tensor and mbarrier transaction counts.
        clusters: Thread block clusters and distributed shared memory.
        setmaxnreg: Registers move between warpgroups at run time.
        vector_atomics: red/atom on vectors of f32 and packed halves in global memory.
        max_access_bytes: The widest global load or store of one thread.
    """

    number: int
    name: str
    ptx: int
    shared_bytes: int
    shared_bytes_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int = 64 << 10
    cp_async: bool = True
    ldmatrix: bool = True
    stmatrix: bool = False
    fp8_convert: bool = False
    fp8_mma: bool = False
    native_bf16: bool = False
    wgmma: bool = False
    tcgen05: bool = False
    tma: bool = False
    clusters: bool = False
    setmaxnreg: bool = False
    vector_atomics: bool = False
    max_access_bytes: int = 16

    warp_size = WARP_SIZE
    max_threads = MAX_THREADS

    @property
    def dependent_launches(self) -> bool:
        """Whether a launch may begin while the one before it ends (griddepcontrol)."""
        return self.number >= 90

    max_grid = MAX_GRID
    max_registers = MAX_REGISTERS_PER_THREAD

    @property
    def features(self) -> str:
        """LLVM's target features for this chip."""
        return f"+ptx{self.ptx}"

    def supports(self, capability: str) -> bool:
        """Whether the flag of that name is set; for tables that name capabilities as data."""
        return bool(getattr(self, capability))

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """How many blocks of one kernel fit on a multiprocessor at once; 0 if none does.

        Registers are given out by the warp in units of 256, shared memory in units of 128 bytes.
        """
        warps = -(-threads // WARP_SIZE)
        by_warps = self.warps_per_sm // warps
        warp_registers = -(-max(registers, 1) * WARP_SIZE // 256) * 256
        # Each of the four schedulers has its own quarter of the register file.
        warps_by_registers = self.registers_per_sm // 4 // warp_registers * 4
        block_shared = -(-shared_bytes // 128) * 128 + _RESERVED_SHARED_BYTES
        by_shared = self.shared_bytes_per_sm // block_shared
        return min(self.blocks_per_sm, by_warps, warps_by_registers // warps, by_shared)

    def most_registers(self, threads: int) -> int:
        """How many registers a thread can have for a block of so many threads to fit at all."""
        # As many warps on each scheduler: a ninth warp takes as much as four.
        each = -(-threads // (4 * WARP_SIZE))
        return min(self.registers_per_sm // 4 // each // 256 * 8, MAX_REGISTERS_PER_THREAD)


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(80, "sm_80", 80, 163 << 10, 164 << 10, 64, 32),
        Chip(86, "sm_86", 80, 99 << 10, 100 << 10, 48, 16),
        # mma.sync on e4m3 and e5m2 came with PTX 8.4.
        Chip(89, "sm_89", 84, 99 << 10, 100 << 10, 48, 24, fp8_convert=True, fp8_mma=True),
        Chip(
            90, "sm_90a", 84, 227 << 10, 228 << 10, 64, 32,
            stmatrix=True, fp8_convert=True, fp8_mma=True, native_bf16=True, wgmma=True, tma=True,
            clusters=True, setmaxnreg=True, vector_atomics=True,
        ),
        Chip(
            100, "sm_100a", 86, 227 << 10, 228 << 10, 64, 32,
            stmatrix=True, fp8_convert=True, fp8_mma=True, native_bf16=True, tcgen05=True, tma=True,
            clusters=True, setmaxnreg=True, vector_atomics=True, max_access_bytes=32,
        ),
        # No "a": nothing here needs it, and the PTX then also runs on sm_121.
        Chip(
            120, "sm_120", 87, 99 << 10, 100 << 10, 48, 24,
            stmatrix=True, fp8_convert=True, fp8_mma=True, native_bf16=True, tma=True,
            clusters=True, vector_atomics=True,
        ),
    )
}  # fmt: skip


def chip(name: str) -> Chip:
    """Return the chip of that name.

    Raises:
        KernelError: There is none; the message lists those there are.
    """
    found = CHIPS.get(name)
    if found is None:
        raise KernelError(f"expected an NVIDIA chip among {', '.join(CHIPS)}, found {name!r}")
    return found


def chip_of_capability(major: int, minor: int) -> Chip | None:
    """Return the chip whose code a device of this compute capability runs best.

    Its own where the table has it; otherwise the latest earlier one whose PTX the driver can still
    translate, which excludes the architecture-specific "a" ones; None where there is neither.
    """
    number = 10 * major + minor
    exact = [c for c in CHIPS.values() if c.number == number]
    portable = [c for c in CHIPS.values() if c.number < number and not c.name.endswith("a")]
    return max(exact or portable, key=lambda c: c.number, default=None)
