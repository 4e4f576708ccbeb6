"""The passes from `tile` to `llvm` for an NVIDIA chip, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tiledsl.dialects.contracts import LLVM, MACHINE, TGPU, TILE
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.gpu.lower_to_machine import lower_to_machine
from tiledsl.targets.gpu.share_bounds import share_bounds
from tiledsl.targets.gpu.share_divisors import share_divisors
from tiledsl.targets.gpu.split_registers import split_registers
from tiledsl.targets.nvptx import arithmetic, casts, mma
from tiledsl.targets.nvptx.boxes import keeps_box
from tiledsl.targets.nvptx.chips import Chip
from tiledsl.targets.nvptx.convert_to_llvm import convert_to_llvm
from tiledsl.targets.nvptx.lower import NvptxMachine
from tiledsl.targets.target import Options
from tiledsl.transforms.assign_layouts import assign_layouts
from tiledsl.transforms.boxes import copy_boxes
from tiledsl.transforms.delay_products import delay_products
from tiledsl.transforms.drop_true_masks import drop_true_masks
from tiledsl.transforms.expand_casts import expand_casts
from tiledsl.transforms.expand_descriptors import expand_descriptors
from tiledsl.transforms.expand_division import expand_division
from tiledsl.transforms.expand_math import expand_math
from tiledsl.transforms.insert_barriers import insert_barriers
from tiledsl.transforms.limit_tiles import limit_tiles
from tiledsl.transforms.narrow_reductions import narrow_reductions
from tiledsl.transforms.overlap_launches import overlap_launches
from tiledsl.transforms.pipeline_loops import pipeline_loops
from tiledsl.transforms.place_shared import place_shared
from tiledsl.transforms.place_tensor_maps import place_tensor_maps
from tiledsl.transforms.promote_floats import promote_floats
from tiledsl.transforms.rematerialize import rematerialize
from tiledsl.transforms.run import Step
from tiledsl.transforms.select_mma import select_mma
from tiledsl.transforms.share_conversions import share_conversions
from tiledsl.transforms.simplify import simplify
from tiledsl.transforms.split_programs import split_programs
from tiledsl.transforms.store_boxes import store_boxes
from tiledsl.transforms.swizzle_shared import swizzle_shared
from tiledsl.transforms.wait_for_stores import wait_for_stores

_MOST_ACROSS = 32
"""Registers of a thread from which on a row waits in shared memory while warps meet.

Shares of a copy's bandwidth on an H200, rows of bf16, 32 elements a thread, without the pass and
with it: softmax of rows of 8192 .97, .96; 16384 .95, .96; 32768 .79, .96; layer norm of 4096 .97,
.95; 8192 .93, .95; 16384 .62, .95.
"""


def passes(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes from the `tile` level to the `llvm` level.

    Raises:
        KernelError: A block cannot have so many warps.
    """
    most = chip.max_threads // chip.warp_size
    warps = options.num_warps
    if not 0 < warps <= most or warps & (warps - 1):
        raise KernelError(f"expected num_warps to be a power of two up to {most}, found {warps}")
    return [*tile_steps(chip, options), *tgpu_steps(chip, options), *machine_steps(chip, options)]


def blocks_of(chip: Chip, options: Options) -> int:
    """Return how many blocks run a program: one where the chip has no clusters."""
    return options.num_ctas if chip.clusters else 1


def tile_steps(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes that say what the kernel means in what the chip computes with."""
    blocks = blocks_of(chip, options)
    return [
        Step(simplify, TILE),
        # First of all: what follows is for the tiles of one block.
        *([Step(partial(split_programs, blocks=blocks), TILE)] if blocks > 1 else []),
        Step(partial(expand_descriptors, keeps=partial(keeps_box, chip)), TILE),
        Step(drop_true_masks, TILE),
        Step(expand_division, TILE),
        # Before casts are expanded: it may cast operands to a type that the chip multiplies.
        Step(partial(select_mma, table=mma.table(chip), num_warps=options.num_warps), TILE),
        # Types first: which functions and casts are left to expand depends on them.
        Step(partial(promote_floats, native=arithmetic.float_types(chip)), TILE),
        Step(partial(narrow_reductions, native=arithmetic.float_types(chip)), TILE),
        Step(
            partial(expand_math, native=arithmetic.NATIVE, approximate=arithmetic.APPROXIMATE),
            TILE,
        ),
        Step(partial(expand_casts, native=casts.native(chip)), TILE),
        Step(simplify, TILE),
    ]


def tgpu_steps(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes that spread tiles over threads and plan shared memory."""
    warps = options.num_warps
    matrices = {"matrix_loads": chip.ldmatrix, "matrix_stores": chip.stmatrix}
    return [
        # Layouts follow from matrix instructions and from how memory is accessed.
        Step(partial(assign_layouts, num_warps=warps, warp_size=chip.warp_size), TGPU),
        Step(limit_tiles, TGPU),
        # While loads still are loads, and their addresses in sight.
        Step(
            partial(
                pipeline_loops,
                stages=options.num_stages,
                copy="cp.async",
                shared_bytes=chip.shared_bytes,
                max_registers=options.max_registers,
            ),
            TGPU,
        ),
        Step(copy_boxes, TGPU),
        # Shared memory that no loop and no box needs is for rows.
        Step(partial(rematerialize, least=_MOST_ACROSS, shared_bytes=chip.shared_bytes), TGPU),
        # Loops that load ahead now wait for what they multiply: there products may overlap.
        Step(delay_products, TGPU),
        Step(partial(store_boxes, limit=chip.shared_bytes), TGPU),
        Step(partial(share_conversions, **matrices), TGPU),
        # All readers and writers of a buffer are known: choose what has no bank conflicts.
        Step(partial(swizzle_shared, **matrices), TGPU),
        Step(place_tensor_maps, TGPU),
        # Barriers follow placement, because buffers may share bytes.
        Step(partial(place_shared, limit=chip.shared_bytes), TGPU),
        Step(wait_for_stores, TGPU),
        Step(insert_barriers, TGPU),
        *([Step(overlap_launches, TGPU)] if chip.dependent_launches else []),
    ]


def machine_steps(chip: Chip, options: Options) -> Sequence[Step]:
    """Return the passes from `tgpu` with shared memory placed to `llvm`."""
    machine = NvptxMachine(chip, options.max_registers, blocks_of(chip, options))
    return [
        Step(partial(lower_to_machine, machine=machine), MACHINE),
        # While all registers of one bound, and of one divisor, are in one vector.
        Step(share_bounds, MACHINE),
        Step(share_divisors, MACHINE),
        # Neither LLVM nor ptxas puts the work of a long epilogue in an order that fits registers.
        # Pieces of 16: of 8 spill more in the products measured, of 64 much more.
        Step(partial(split_registers, width=16), MACHINE),
        # Opaque assembly appears only here, where nothing reads the IR any more.
        Step(convert_to_llvm, LLVM),
    ]
