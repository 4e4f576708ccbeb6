"""The passes from `tile` to `llvm` for an AMD chip, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tiledsl.dialects.contracts import LLVM, MACHINE, TGPU, TILE
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.amdgpu import lower_cast, lower_math, mma
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.amdgpu.lower import AmdMachine, shared_memory
from tiledsl.targets.amdgpu.release_in_loops import release_in_loops
from tiledsl.targets.gpu.line_locations import debug_scopes
from tiledsl.targets.gpu.lower_to_machine import lower_to_machine
from tiledsl.targets.gpu.share_divisors import share_divisors
from tiledsl.targets.gpu.share_factors import share_factors
from tiledsl.targets.gpu.split_registers import split_registers
from tiledsl.targets.target import Options
from tiledsl.transforms.assign_layouts import assign_layouts
from tiledsl.transforms.drop_true_masks import drop_true_masks
from tiledsl.transforms.expand_casts import expand_casts
from tiledsl.transforms.expand_descriptors import expand_descriptors
from tiledsl.transforms.expand_division import expand_division
from tiledsl.transforms.expand_math import expand_math
from tiledsl.transforms.insert_barriers import insert_barriers
from tiledsl.transforms.limit_tiles import limit_tiles
from tiledsl.transforms.pipeline_loops import pipeline_loops
from tiledsl.transforms.place_shared import place_shared
from tiledsl.transforms.promote_floats import promote_floats
from tiledsl.transforms.relieve_registers import relieve_registers
from tiledsl.transforms.run import Step, upstream
from tiledsl.transforms.select_mma import select_mma
from tiledsl.transforms.share_conversions import share_conversions
from tiledsl.transforms.simplify import simplify
from tiledsl.transforms.sink_local_loads import sink_local_loads
from tiledsl.transforms.split_depth import split_depth
from tiledsl.transforms.swizzle_shared import swizzle_shared

TO_LLVM = Step(
    upstream(
        "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
        f"convert-cf-to-llvm,reconcile-unrealized-casts,{debug_scopes(tables=True)}",
        "convert_to_llvm",
    ),
    LLVM,
)
"""Flatten control flow and name everything as LLVM does."""


def passes(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes from the `tile` level to the `llvm` level.

    Raises:
        KernelError: A workgroup cannot have so many waves.
    """
    most = chip.max_threads // chip.wave_size
    if options.num_warps > most:
        raise KernelError(
            f"num_warps: expected at most {most} on {chip.name}, whose waves have "
            f"{chip.wave_size} lanes, found {options.num_warps}"
        )
    return [
        *tile_passes(chip, options),
        *tgpu_passes(chip, options),
        *machine_passes(chip, options),
    ]


def tile_passes(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes that say what a kernel means in what the chip computes with."""
    native, approximate = lower_math.NATIVE, lower_math.APPROXIMATE
    return [
        Step(simplify, TILE),
        Step(expand_descriptors, TILE),
        Step(drop_true_masks, TILE),
        Step(expand_division, TILE),
        # While products are of whole tiles; instructions and layouts are those of halves.
        Step(
            partial(
                split_depth,
                threads=options.num_warps * chip.wave_size,
                max_registers=chip.max_vgprs,
                stages=options.num_stages,
            ),
            TILE,
        ),
        # Matrix instructions first: operands that none takes are cast, and casts expand below.
        Step(partial(select_mma, table=mma.table(chip), num_warps=options.num_warps), TILE),
        # Then types: which functions and casts are left to expand depends on them.
        Step(partial(promote_floats, native=lower_math.FLOAT_TYPES), TILE),
        Step(partial(expand_math, native=native, approximate=approximate), TILE),
        Step(partial(expand_casts, native=lower_cast.conversions(chip)), TILE),
        Step(simplify, TILE),
    ]


def tgpu_passes(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes that spread tiles over threads and plan shared memory."""
    memory = shared_memory(chip)
    return [
        Step(partial(assign_layouts, num_warps=options.num_warps, warp_size=chip.wave_size), TGPU),
        Step(limit_tiles, TGPU),
        # While loads still are loads, and their addresses in sight. Copies to LDS that bypass
        # registers are 4 bytes wide on most chips, so data waits in registers.
        Step(partial(pipeline_loops, stages=options.num_stages, copy="registers"), TGPU),
        Step(partial(share_conversions, memory=memory), TGPU),
        # All readers and writers of a buffer are known: choose what has no bank conflicts.
        Step(partial(swizzle_shared, memory=memory), TGPU),
        # LLVM moves no read over a barrier, and operands that wait cost registers.
        Step(sink_local_loads, TGPU),
        # What waits for products now waits where it must.
        Step(
            partial(relieve_registers, max_registers=chip.max_vgprs, shared_bytes=chip.lds_bytes),
            TGPU,
        ),
        # Barriers follow placement, because buffers may share bytes.
        Step(partial(place_shared, limit=chip.lds_bytes), TGPU),
        Step(insert_barriers, TGPU),
    ]


def machine_passes(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes from `tgpu` with shared memory placed to `llvm`."""
    machine = AmdMachine(chip, options.num_warps)
    return [
        Step(partial(lower_to_machine, machine=machine), MACHINE),
        # While loops still are loops.
        Step(release_in_loops, MACHINE),
        # While all registers of one divisor are in one vector.
        Step(share_divisors, MACHINE),
        # While the registers of one product are in one vector.
        Step(share_factors, MACHINE),
        # LLVM schedules what it gets: without this it spills, and takes long over it.
        Step(split_registers, MACHINE),
        TO_LLVM,
    ]
