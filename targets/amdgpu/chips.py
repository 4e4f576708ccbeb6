"""AMD's chips as a table: what each can hold and which instructions it has.

Passes, lowering and the emulator ask this table and never test a chip by name. A chip's number is
its name read as hexadecimal (gfx90a is 0x90a, gfx1100 is 0x1100), so that later means larger.

Sources: AMD's instruction set manuals (MI200, MI300, CDNA4, RDNA3, RDNA3.5, RDNA4) and LLVM's
AMDGPU usage guide and subtarget features, which decide whether an instruction can be emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tiledsl.dialects.diagnostics import KernelError

MAX_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
"""Workgroups along x, y, z; HIP also wants fewer than 2**32 threads along each."""

Fp8 = Literal["none", "fnuz", "ocp"]


@dataclass(frozen=True)
class Chip:
    """One AMD architecture.

    Attributes:
        number: The name's digits as a hexadecimal number.
        name: LLVM's name.
        wave_size: Lanes a wave, as kernels are compiled here.
        lds_bytes: Shared memory: the most one workgroup can have.
        lds_bytes_per_unit: What a compute unit (RDNA: a workgroup processor) has for all of them.
        matrix: The family of matrix instructions.
        fp8: The encoding that its fp8 instructions use; "none" without any.
        vgprs: Vector registers a SIMD lane has in one wave-size mode, shared by resident waves.
        vgpr_granule: The unit they are given out in.
        max_vgprs: The most one wave can address (CDNA: vector and accumulation ones together).
        agprs: Accumulation registers exist beside the vector ones.
        waves_per_simd: Resident waves.
        simds: SIMDs a compute unit (RDNA: a workgroup processor) has.
        lds_granule: The unit of bytes in which LDS is given out.
        barriers: Workgroups of more than one wave that a compute unit can have.
        lds_load_bytes: The widest load from global memory straight to LDS a lane; 0 without any.
        xf32: mfma on f32 operands rounded to 19 bits.
        ds_read_tr: LDS reads that transpose 16-bit and 8-bit tiles.
        global_load_tr: Global loads that transpose.
        bf16_convert: v_cvt_pk_bf16_f32.
        packed_f32: v_pk_add/mul/fma_f32.
        maximum_bits: Widths of floats that one instruction gives a NaN-keeping maximum of.
        split_waits: s_wait_loadcnt and kin in place of one s_waitcnt.
    """

    number: int
    name: str
    wave_size: int
    lds_bytes: int
    lds_bytes_per_unit: int
    matrix: Literal["mfma", "wmma"]
    fp8: Fp8
    vgprs: int
    vgpr_granule: int
    max_vgprs: int
    agprs: bool
    waves_per_simd: int
    simds: int
    lds_granule: int
    barriers: int
    lds_load_bytes: int = 0
    xf32: bool = False
    ds_read_tr: bool = False
    global_load_tr: bool = False
    bf16_convert: bool = False
    packed_f32: bool = False
    maximum_bits: tuple[int, ...] = ()
    split_waits: bool = False

    max_threads = MAX_THREADS
    max_grid = MAX_GRID
    max_access_bytes = 16
    features = ""  # "+sramecc" and the like would change the target id that loaders compare.

    @property
    def shared_bytes(self) -> int:
        """LDS under the name that both vendors' tables share."""
        return self.lds_bytes

    def supports(self, capability: str) -> bool:
        """Whether the field of that name says yes; for tables that name capabilities as data.

        The two families of matrix instructions and "fp8" count as capabilities of their own.
        """
        if capability in ("mfma", "wmma"):
            return self.matrix == capability
        if capability == "fp8":
            return self.fp8 != "none"
        return bool(getattr(self, capability))

    def waves(self, vgprs: int) -> int:
        """How many waves of `vgprs` registers (of both kinds, CDNA) one SIMD holds at once."""
        given = -(-max(vgprs, 1) // self.vgpr_granule) * self.vgpr_granule
        return min(self.waves_per_simd, self.vgprs // given)

    def resident_workgroups(self, threads: int, vgprs: int, lds_bytes: int) -> int:
        """How many workgroups of one kernel fit on a compute unit at once; 0 if none does.

        On RDNA a compute unit here means a workgroup processor, two compute units that share LDS.
        """
        waves = -(-threads // self.wave_size)
        by_waves = self.waves(vgprs) * self.simds // waves
        if waves > 1:
            by_waves = min(by_waves, self.barriers)
        if lds_bytes == 0:
            return by_waves
        given = -(-lds_bytes // self.lds_granule) * self.lds_granule
        return min(by_waves, self.lds_bytes_per_unit // given)


def _cdna(name: str, fp8: Fp8, lds_kib: int, lds_granule: int, lds_load: int, **more: Any) -> Chip:
    """A CDNA2 to CDNA4 chip: wave64, 512 registers a lane of which half may accumulate."""
    return Chip(
        int(name[3:], 16), name, 64, lds_kib << 10, lds_kib << 10, "mfma", fp8,
        vgprs=512, vgpr_granule=8, max_vgprs=512, agprs=True, waves_per_simd=8, simds=4,
        lds_granule=lds_granule, barriers=16, lds_load_bytes=lds_load, packed_f32=True, **more,
    )  # fmt: skip


def _rdna(name: str, fp8: Fp8, **more: Any) -> Chip:
    """An RDNA3 to RDNA4 chip with the large register file, compiled for wave32."""
    return Chip(
        int(name[3:], 16), name, 32, 64 << 10, 128 << 10, "wmma", fp8,
        vgprs=1536, vgpr_granule=24, max_vgprs=256, agprs=False, waves_per_simd=16, simds=4,
        lds_granule=1024, barriers=32, **more,
    )  # fmt: skip


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        _cdna("gfx90a", "none", 64, 512, lds_load=4),
        _cdna("gfx942", "fnuz", 64, 512, lds_load=4, xf32=True),
        _cdna("gfx950", "ocp", 160, 1280, lds_load=16, ds_read_tr=True, bf16_convert=True,
              maximum_bits=(16, 32)),
        _rdna("gfx1100", "none"),
        _rdna("gfx1151", "none"),
        _rdna("gfx1200", "ocp", global_load_tr=True, split_waits=True, maximum_bits=(16, 32, 64)),
        _rdna("gfx1201", "ocp", global_load_tr=True, split_waits=True, maximum_bits=(16, 32, 64)),
    )
}  # fmt: skip


def chip(name: str) -> Chip:
    """Return the chip of that name; what follows a colon (":sramecc+:xnack-") is ignored.

    Raises:
        KernelError: There is none; the message lists those there are.
    """
    found = CHIPS.get(name.split(":", 1)[0])
    if found is None:
        raise KernelError(f"expected an AMD chip among {', '.join(CHIPS)}, found {name!r}")
    return found
