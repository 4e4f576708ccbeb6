"""From assembly text to basic blocks of steps.

How to add a family of instructions: write a module with

    TABLE: dict[str, Entry] = {"v_not_b32": Entry(decode, InstructionClass.INTEGER), ...}

and add the module to `_families`. A key is the mnemonic's stem (`_e32`, `_e64`, `_dpp`, `_e64_dpp`,
`_sdwa` are off it); a key that ends with "_" stands for every stem that begins so, unless there is
a longer one. `decode(parsed, context)` returns the `Step`; all that is known from the text
(registers, constants, modifiers) is settled there. An instruction after which the group may be
elsewhere or have to wait is an `Ending` instead: its decoder returns the block's `End`, and finds
where control goes on without it in `context.following`.

Steps get a `machine.Machine`. Values of operands are read and written through `operands` (`reader`,
`writer`, `scalar_reader`, `scalar_writer`), which know modifiers and masks. An instruction that is
not in a table is a `CompilerBug` that names it.

Code has addresses only as far as they can be computed with: instruction i is at
`CODE_ADDRESS + 8 * i`, and `s_getpc_b64` returns the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.amdgpu.emulator.sections import Label, Module
from tiledsl.targets.amdgpu.emulator.text import (
    SCALARS,
    VECTOR_BITS,
    Parsed,
    Register,
    registers_of,
)
from tiledsl.targets.gpu.emulator.program import (
    BasicBlock,
    End,
    Instruction,
    InstructionClass,
    Step,
)

CODE_ADDRESS = 0x10_0000_0000
"""No allocation lies so low, so an access to code is out of bounds."""


@dataclass(frozen=True)
class Launch:
    """What the hardware puts into registers before the first instruction.

    Attributes:
        arguments: The first of the scalar registers with the arguments' address; None without.
        dispatch: The first of those with the dispatch packet's address; None without.
        workgroup_ids: (scalar register, axis) of each workgroup id in scalar registers.
        trap_ids: Workgroup ids are in ttmp9 (x) and ttmp7 (y, z << 16).
        private_buffer: The first of four scalar registers with a descriptor of private memory.
        wave_offset: The scalar register with the wave's offset in private memory; None without.
    """

    arguments: int | None
    dispatch: int | None
    workgroup_ids: tuple[tuple[int, int], ...]
    trap_ids: bool
    private_buffer: int | None
    wave_offset: int | None


@dataclass
class WaveBlock(BasicBlock):
    """A basic block that also knows which registers each step names.

    Attributes:
        guarded: The steps, each with its registers (see `text.registers_of`) and instruction.
        end_registers: The registers of the instruction at its end.
    """

    guarded: Sequence[tuple[Step, int, Instruction]] = ()
    end_registers: int = 0


GFX940 = 0x940
"""The first chip with several caches that are each shared by some workgroups only."""
WIDE = ("SCOPE_DEV", "SCOPE_SYS")
"""Scopes that all workgroups are in."""
_FEW = 1 << 31
"""v31: a wave never has fewer registers than up to it."""


@dataclass(frozen=True)
class Code:
    """A decoded kernel.

    Attributes:
        chip: What it is for.
        wave_size: Lanes a wave.
        mode: What MODE starts with: rounding and denormals (`floats`).
        lds_bytes: LDS a workgroup.
        lds_granule: The bytes that every access to LDS is a multiple of.
        private_bytes: Private memory a lane.
        launch: What the registers start with.
        blocks: The basic blocks, the entry first.
        instructions: Every instruction, by index.
        parsed: The text of each, taken apart.
    """

    chip: Chip
    wave_size: int
    mode: int
    lds_bytes: int
    lds_granule: int
    private_bytes: int
    launch: Launch
    blocks: Sequence[WaveBlock]
    instructions: Sequence[Instruction]
    parsed: Sequence[Parsed]

    def block_at(self, index: int) -> int | None:
        """Return the block that begins with an instruction, given by index; None if none does."""
        return self._starts.get(index)

    @cached_property
    def vectors(self) -> int:
        """How many vector registers there are to be: all that are named, and a few at least."""
        named = [registers_of(one.operands) for one in self.parsed]
        named += [registers_of(one.dual.operands) for one in self.parsed if one.dual is not None]
        return max((bits & VECTOR_BITS).bit_length() for bits in [_FEW, *named])

    @cached_property
    def _starts(self) -> dict[int, int]:
        found = ((one.instructions, number) for number, one in enumerate(self.blocks))
        return {own[0].index: number for own, number in found if own}


@dataclass
class Context:
    """What decoders know beside the instruction.

    Attributes:
        chip: What the text is for.
        wave_size: Lanes a wave.
        mode: What MODE starts with.
        mode_varies: Whether the text writes MODE, so that it must be looked up at run time.
        symbols: The address of each symbol of data, and of each label of code.
        labels: The block that begins at each label.
        instruction: The one being decoded.
        following: The block after it.
        address: Its own address.
        anchor: The address that the last `s_getpc_b64` before it returns.
        swaps: Words of 4 bytes are compared and swapped, perhaps for a part of them; see
            `global_memory.swaps`.
        assertions: What the module's assertions say.
    """

    chip: Chip
    wave_size: int
    mode: int
    mode_varies: bool
    symbols: dict[str, int]
    labels: dict[str, int] = field(default_factory=dict[str, int])
    instruction: Instruction = field(init=False)
    following: int = 0
    address: int = 0
    anchor: int = 0
    swaps: bool = False
    assertions: Sequence[str] = ()

    @property
    def generation(self) -> int:
        """The major number of the chip: 9 (CDNA), 11 or 12."""
        return int(f"{self.chip.number >> 8:x}")

    def target(self, label: str) -> int:
        """Return the block that begins at a label."""
        if label not in self.labels:
            raise CompilerBug(f"{self.instruction.text}: there is no label {label}")
        return self.labels[label]


Decoder = Callable[[Parsed, Context], Step]
EndDecoder = Callable[[Parsed, Context], End]


@dataclass(frozen=True)
class Entry:
    """How to decode one mnemonic.

    Attributes:
        decode: Makes the step.
        kind: What it counts as.
    """

    decode: Decoder
    kind: InstructionClass


@dataclass(frozen=True)
class Ending:
    """How to decode one mnemonic that ends its basic block.

    Attributes:
        decode: Makes the block's end.
        kind: What it counts as.
    """

    decode: EndDecoder
    kind: InstructionClass


Table = Mapping[str, "Entry | Ending"]


@cache
def _families() -> Table:
    """Return every family's table in one."""
    from tiledsl.targets.amdgpu.emulator import (
        atomics,
        barrier,
        buffer,
        control,
        division,
        dual,
        flat,
        global_memory,
        lds,
        lds_atomics,
        lds_exchange,
        lds_transpose,
        matrix,
        orders,
        packed,
        scalar,
        scalar_float,
        scalar_memory,
        scalar_state,
        scratch,
        vector_compare,
        vector_convert,
        vector_float,
        vector_integer,
        vector_lanes,
        vector_moves,
        wait_instructions,
    )

    merged: dict[str, Entry | Ending] = {}
    for module in (
        scalar, scalar_float, scalar_memory, scalar_state, control, vector_integer, vector_float,
        vector_convert, vector_compare, vector_lanes, vector_moves, packed, division, dual,
        global_memory, flat, buffer, scratch, atomics, lds, lds_atomics, lds_exchange,
        lds_transpose, matrix, wait_instructions, orders, barrier,
    ):  # fmt: skip
        table: Table = module.TABLE
        twice = merged.keys() & table.keys()
        if twice:
            raise CompilerBug(f"two families know {sorted(twice)}")
        merged |= table
    return merged


def entry_of(parsed: Parsed) -> Entry | Ending:
    """Return how an instruction is decoded.

    Raises:
        CompilerBug: No family knows it.
    """
    table = _families()
    found = table.get(parsed.stem)
    stem = parsed.stem
    while found is None and "_" in stem:
        stem = stem[: stem.rindex("_")]
        found = table.get(stem + "_")
    if found is None:
        raise CompilerBug(f"the AMDGPU emulator does not know `{parsed.mnemonic}`: {parsed.text}")
    return found


def decode_blocks(
    module: Module, entry: str, context: Context
) -> tuple[list[WaveBlock], list[Instruction], list[Parsed]]:
    """Decode the code of a module.

    Args:
        module: The text.
        entry: The kernel's label.
        context: Knows the symbols of data; gets labels and the addresses of code.

    Returns:
        Blocks, the entry's first; instructions and their texts by index.

    Raises:
        CompilerBug: An instruction or a label is not known.
    """
    pieces = _partition(_entry_first(module.code, entry), context)
    blocks: list[WaveBlock] = []
    instructions: list[Instruction] = []
    parsed: list[Parsed] = []
    for number, piece in enumerate(pieces):
        context.following = number + 1
        blocks.append(_decode_block(piece, context, instructions, parsed))
    return blocks, instructions, parsed


def _entry_first(code: Sequence[Parsed | Label], entry: str) -> list[Parsed | Label]:
    """Return the code with the kernel's own before what is above it in the text."""
    for position, one in enumerate(code):
        if isinstance(one, Label) and one.name == entry:
            return [*code[position:], *code[:position]]
    raise CompilerBug(f"AMDGPU assembly has no kernel {entry!r}")


@dataclass
class _Piece:
    """The instructions of one block, and its labels."""

    code: list[Parsed]
    label: str = ""


def _partition(code: Sequence[Parsed | Label], context: Context) -> list[_Piece]:
    """Cut code into blocks, and tell the context the block and the address of each label."""
    pieces = [_Piece([])]
    count = 0
    for one in code:
        if isinstance(one, Label):
            if pieces[-1].code:
                pieces.append(_Piece([]))
            pieces[-1].label = one.name
            context.labels[one.name] = len(pieces) - 1
            context.symbols[one.name] = CODE_ADDRESS + 8 * count
            continue
        count += 1
        pieces[-1].code.append(one)
        if isinstance(entry_of(one), Ending):
            pieces.append(_Piece([]))
    return pieces


def _decode_block(
    piece: _Piece, context: Context, instructions: list[Instruction], parsed: list[Parsed]
) -> WaveBlock:
    """Decode one block, adding to `instructions` and `parsed`."""
    first = len(instructions)
    guarded: list[tuple[Step, int, Instruction]] = []
    end: End = _fall_through(context.following)
    end_registers = 0
    for one in piece.code:
        entry = entry_of(one)
        context.address = CODE_ADDRESS + 8 * len(instructions)
        if one.stem == "s_getpc_b64":
            context.anchor = context.address + 8
        strong = _is_strong(one, context)
        context.instruction = Instruction(
            len(instructions), one.text, entry.kind, one.source, strong
        )
        instructions.append(context.instruction)
        parsed.append(one)
        registers = _registers(one)
        if isinstance(entry, Ending):
            end, end_registers = entry.decode(one, context), registers
        else:
            guarded.append((entry.decode(one, context), registers, context.instruction))
    steps = [step for step, _, _ in guarded]
    own = instructions[first:]
    return WaveBlock(steps, end, own, piece.label, guarded, end_registers)


def _fall_through(following: int) -> End:
    return lambda machine: following


_IMPLICIT = {
    "s_cbranch_vccz": "vcc", "s_cbranch_vccnz": "vcc", "v_div_fmas_f32": "vcc",
    "v_div_fmas_f64": "vcc", "s_movrels_b32": "m0", "v_dual_cndmask_b32": "vcc",
}  # fmt: skip


def _is_strong(parsed: Parsed, context: Context) -> bool:
    """Say whether a load goes past the caches that workgroups do not share."""
    if context.generation == 9 and context.chip.number >= GFX940:
        return "sc1" in parsed
    return "glc" in parsed or parsed.modifiers.get("scope") in WIDE


def _registers(parsed: Parsed) -> int:
    """Return the registers that an instruction names, and those it reads without naming them."""
    bits = registers_of(parsed.operands)
    if parsed.dual is not None:
        bits |= _registers(parsed.dual)
    implied = _IMPLICIT.get(parsed.stem)
    if implied is not None:
        bits |= registers_of([Register("s", *SCALARS[implied])])
    return bits
