"""What `AmdMachine` makes of each request, read in the assembly or worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from mlir import ir
from mlir.dialects import arith, llvm, scf

from tests.targets.amdgpu.by_hand import POINTER, Body, assembly, build, compiled, element
from tiledsl.dialects.context import context
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.amdgpu import lower_lanes, lower_memory
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.lower import AmdMachine
from tiledsl.targets.amdgpu.lower_cast import conversions
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import PLAIN, Hints

Arguments = Sequence[ir.Value]
RDNA = [name for name in CHIPS if CHIPS[name].matrix == "wmma"]


def words(machine: AmdMachine, pointer: ir.Value) -> ir.Value:
    """Return a word that differs in each lane."""
    i32 = emit.integer(32)
    address = element(pointer, machine.thread_id(), i32)
    return emit.extract(machine.load(emit.vector_of(1, i32), address, 4, PLAIN, None, None), 0)


def keep(machine: AmdMachine, pointer: ir.Value, value: ir.Value) -> None:
    """Store a scalar or vector, an element a lane."""
    vector = value if emit.is_vector(value.type) else emit.splat(value, 1)
    size = emit.registers_of(vector) * emit.width_of(vector.type) // 8
    machine.store(vector, element(pointer, machine.thread_id(), vector.type), size, PLAIN, None)


def in_range(machine: AmdMachine, count: ir.Value) -> ir.Value:
    return emit.compare("slt", machine.thread_id(), count)


# Lanes.


def permuted(control: int, lanes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the lane that each lane reads from under a DPP control (CDNA3 ISA, "DPP_CTRL")."""
    within = lanes % 16
    if control < 0x100:
        source = within & ~3 | control >> 2 * (within & 3) & 3
    elif control == 0x140:
        source = 15 - within
    elif control == 0x141:
        source = within & 8 | 7 - (within & 7)
    elif 0x121 <= control <= 0x12F:
        source = (within - (control - 0x120)) % 16
    else:
        assert 0x160 <= control <= 0x16F
        source = within ^ control - 0x160
    return lanes - within + source


@pytest.mark.parametrize("chip", ["gfx90a", "gfx1100"])
def test_dpp_controls_add_up_to_the_xor(chip: str) -> None:
    lanes = np.arange(CHIPS[chip].wave_size)
    for mask in range(16):
        held = lanes
        for control in lower_lanes.dpp_controls(CHIPS[chip], mask):
            held = held[permuted(control, lanes)]
        np.testing.assert_array_equal(held, lanes ^ mask)


def shuffled(chip: str, mask: int) -> str:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        word = machine.shuffle_xor(words(machine, arguments[0]), mask)
        keep(machine, arguments[0], word)

    return assembly(chip, [POINTER], body)


@pytest.mark.parametrize("chip", CHIPS)
def test_an_xor_within_a_row_stays_in_the_alu(chip: str) -> None:
    for mask in (1, 2, 4, 8, 15):
        text = shuffled(chip, mask)
        assert "_dpp" in text
        assert "ds_" not in text


@pytest.mark.parametrize(
    ("chip", "mask", "wanted"),
    [
        ("gfx90a", 16, "ds_swizzle_b32 .* offset:swizzle(SWAP,16)"),
        ("gfx942", 21, 'ds_swizzle_b32 .* offset:swizzle(BITMASK_PERM,"ipipi")'),
        ("gfx942", 32, "ds_bpermute_b32"),
        ("gfx950", 16, "v_permlane16_swap_b32"),
        ("gfx950", 32, "v_permlane32_swap_b32"),
        ("gfx1100", 16, "v_permlanex16_b32"),
        ("gfx1201", 31, "v_permlanex16_b32"),
    ],
)
def test_an_xor_across_rows_takes_the_chips_instruction(chip: str, mask: int, wanted: str) -> None:
    pattern = re.escape(wanted).replace(r"\.\*", ".*").replace(r"\ ", " ")
    assert re.search(pattern, shuffled(chip, mask))


def test_permlanex16_selects_the_lane_by_nibbles() -> None:
    text = shuffled("gfx1100", 16 + 1)
    selectors = {int(x, 16) & 0xFFFFFFFF for x in re.findall(r"0x[0-9a-f]{8}", text)}
    assert selectors == {0x67452301, 0xEFCDAB89}


def test_a_shuffle_by_index_addresses_bytes() -> None:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        word = words(machine, arguments[0])
        keep(machine, arguments[0], machine.shuffle_index(word, word))

    text = assembly("gfx942", [POINTER], body)
    assert re.search(r"v_lshlrev_b32_e32 (v\d+), 2, .*\n(.*\n)*ds_bpermute_b32 v\d+, \1,", text)


# Programs and threads.


@pytest.mark.parametrize("chip", CHIPS)
def test_the_grid_comes_from_the_dispatch_packet_and_no_argument_is_hidden(chip: str) -> None:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        sizes = [machine.num_programs(axis) for axis in range(3)]
        ids = [machine.program_id(axis) for axis in range(3)]
        total = sizes[0]
        for value in sizes[1:] + ids:
            total = arith.addi(total, value)
        keep(machine, arguments[0], total)

    artifact = compiled(chip, [POINTER], body, num_warps=4)
    text = str(artifact.texts["amdgcn"])
    assert ".amdhsa_kernarg_size 8\n" in text
    assert ".amdhsa_user_sgpr_dispatch_ptr 1\n" in text
    assert artifact.threads == 4 * CHIPS[chip].wave_size
    # Only axis x counts threads: one shift by the workgroup's size.
    shift = artifact.threads.bit_length() - 1
    assert len(re.findall(rf"s_lshr_b32 s\d+, s\d+, {shift}\n", text)) == 1


def test_the_number_of_the_wave_is_a_scalar() -> None:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        wave = arith.shrui(machine.thread_id(), emit.i32(6))
        address = element(arguments[0], wave, emit.integer(32))
        type_ = emit.vector_of(1, emit.integer(32))
        keep(machine, arguments[1], machine.load(type_, address, 4, PLAIN, None, None))

    assert "v_readfirstlane_b32" in assembly("gfx942", [POINTER] * 2, body, num_warps=4)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_load_stays_above_the_barrier_that_follows_it(chip: str) -> None:
    """LLVM would take it to the branch that alone needs the value, past the barrier."""

    def body(machine: AmdMachine, arguments: Arguments) -> None:
        value = words(machine, arguments[0])
        machine.barrier("all", proxy=False)
        branch = scf.IfOp(in_range(machine, emit.i32(64)))
        with ir.InsertionPoint(branch.then_block):
            keep(machine, arguments[1], value)
            scf.YieldOp([])

    text = assembly(chip, [POINTER] * 2, body, num_warps=4)
    assert text.index("global_load") < text.index("s_barrier") < text.index("global_store")


@pytest.mark.parametrize("chip", CHIPS)
def test_a_barrier_of_shared_memory_leaves_global_loads_in_flight(chip: str) -> None:
    def made(memory: str) -> str:
        def body(machine: AmdMachine, arguments: Arguments) -> None:
            llvm.store(machine.thread_id(), machine.shared_base())
            early = words(machine, arguments[0])
            machine.barrier(memory, proxy=False)
            read = llvm.load(emit.integer(32), machine.shared_base())
            keep(machine, arguments[1], arith.addi(early, read))

        text = assembly(chip, [POINTER] * 2, body, num_warps=2, shared_bytes=64)
        return text[: text.index("s_barrier")]

    waiting = re.compile(r"vmcnt\(0\)|s_wait_loadcnt 0|s_wait_loadcnt_dscnt 0x0")
    assert not waiting.search(made("shared"))
    # On CDNA all waves of a workgroup share one L1, which serves in order.
    assert bool(waiting.search(made("all"))) == (chip in RDNA)


def test_shared_memory_is_part_of_the_code_object() -> None:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        llvm.store(words(machine, arguments[0]), machine.shared_base())

    artifact = compiled("gfx950", [POINTER], body, shared_bytes=160 << 10)
    assert artifact.shared_bytes == 0
    assert artifact.resources is not None
    assert artifact.resources.shared_bytes == 160 << 10


# Global memory.


def masked_load(other: float | None, hints: Hints = PLAIN) -> Body:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        type_ = emit.vector_of(4, ir.F32Type.get())
        address = element(arguments[0], machine.thread_id(), type_)
        otherwise = None if other is None else emit.constant(type_, other)
        predicate = in_range(machine, words(machine, arguments[1]))
        keep(machine, arguments[1], machine.load(type_, address, 16, hints, predicate, otherwise))

    return body


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("other", [None, 0.0, -0.0, 7.0])
def test_a_masked_load_is_one_wide_load_without_a_branch(chip: str, other: float | None) -> None:
    text = assembly(chip, [POINTER] * 2, masked_load(other))
    assert len(re.findall(r"global_load_(dwordx4|b128)", text)) == 1
    assert "exec" not in text
    assert "branch" not in text
    # Two selects make the address; the four of the value are saved where it is to be 0.
    selects = len(re.findall("v_cndmask|v_dual_cndmask|:: v_dual_cndmask", text))
    assert (selects > 2) == (other is not None and str(other) != "0.0")


def test_hints_reach_the_instruction() -> None:
    for hints in (Hints(eviction="evict_first"), Hints(cache="cs")):
        assert re.search(
            "global_load_dwordx4 .* nt", assembly("gfx942", [POINTER] * 2, masked_load(None, hints))
        )
    volatile = assembly("gfx942", [POINTER] * 2, masked_load(None, Hints(volatile=True)))
    assert re.search("global_load_dwordx4 .* sc0 sc1", volatile)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_masked_store_is_one_wide_store_under_exec(chip: str) -> None:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        value = emit.splat(words(machine, arguments[1]), 4)
        address = element(arguments[0], machine.thread_id(), value.type)
        predicate = in_range(machine, emit.extract(value, 0))
        machine.store(value, address, 16, PLAIN, predicate)

    text = assembly(chip, [POINTER] * 2, body)
    assert len(re.findall(r"global_store_(dwordx4|b128)", text)) == 1
    assert re.search("s_and_saveexec|v_cmpx", text)


def atomic(kind: str, type_: str, scope: str = "gpu", *, used: bool = False) -> Body:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        element_type = ir.Type.parse(type_)
        address = element(arguments[0], machine.thread_id(), element_type)
        value = emit.constant(element_type, 3)
        predicate = in_range(machine, words(machine, arguments[1]))
        old = machine.atomic_rmw(kind, address, value, "relaxed", scope, predicate, used=used)
        if used:
            keep(machine, arguments[1], old)

    return body


@pytest.mark.parametrize("chip", CHIPS)
def test_integer_atomics_are_instructions(chip: str) -> None:
    for kind, name in (("add", "add"), ("umax", "[u]?max"), ("xor", "xor"), ("xchg", "swap")):
        for type_ in ("i32", "i64"):
            text = assembly(chip, [POINTER] * 2, atomic(kind, type_))
            assert re.search(f"global_atomic_{name}", text), text
            assert "cmpswap" not in text


def test_a_float_atomic_is_an_instruction_where_the_chip_has_one_and_memory_is_its_own() -> None:
    for chip, type_, native in (
        ("gfx90a", "f64", True),
        ("gfx942", "f32", True),
        ("gfx942", "f64", True),
        ("gfx1100", "f32", True),
        ("gfx1201", "f32", True),
        ("gfx1100", "f64", False),
        ("gfx942", "f16", False),
    ):
        text = assembly(chip, [POINTER] * 2, atomic("fadd", type_))
        assert ("global_atomic_add_f" in text) == native, (chip, type_)
        assert ("cmpswap" in text) != native, (chip, type_)
    for chip, kind, type_ in (("gfx942", "fadd", "f32"), ("gfx1100", "umax", "i32")):
        everywhere = assembly(chip, [POINTER] * 2, atomic(kind, type_, scope="sys"))
        assert "cmpswap" in everywhere


def test_a_lane_without_the_predicate_gets_0_from_an_atomic() -> None:
    module = build("gfx942", [POINTER] * 2, atomic("add", "i32", used=True))
    text = str(module)
    branch = text[text.index("scf.if") :]
    assert re.search(r"llvm.atomicrmw add .*\n\s+scf.yield", branch)
    assert re.search(r"else {\n\s+%(\w+) = arith.constant 0 : i32\n\s+scf.yield %\1", branch)


def test_orders_and_scopes_reach_llvm() -> None:
    for sem, scope, wanted in (
        ("acq_rel", "gpu", 'syncscope("agent") acq_rel acquire'),
        ("release", "cta", 'syncscope("workgroup") release monotonic'),
        ("acquire", "sys", "acquire acquire"),
    ):

        def body(machine: AmdMachine, arguments: Arguments) -> None:
            word = words(machine, arguments[1])
            address = element(arguments[0], 0, emit.integer(32))
            old = machine.atomic_cas(address, word, word, sem, scope, None)  # noqa: B023
            keep(machine, arguments[1], old)

        assert wanted in str(compiled("gfx942", [POINTER] * 2, body).texts["llvm"])


def test_float_minimum_and_maximum_are_left_to_the_shared_lowering() -> None:
    with context():
        assert not lower_memory.has_atomic("fmax", ir.F32Type.get())
        assert not lower_memory.has_atomic("fadd", emit.integer(32))
        assert not lower_memory.has_atomic("add", ir.F32Type.get())
        assert lower_memory.has_atomic("fadd", ir.BF16Type.get())


# Arithmetic.


def cast(source: str, result: str, count: int = 8, signed: bool = True) -> Body:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        before, after = ir.Type.parse(source), ir.Type.parse(result)
        held = emit.integer(8) if source.startswith("f8") else before
        type_ = emit.vector_of(count, held)
        size = count * emit.width_of(type_) // 8
        parts = max(1, size // 16)
        each = emit.vector_of(count // parts, held)
        lane = arith.muli(machine.thread_id(), emit.i32(parts))
        value = emit.concatenate(
            [
                machine.load(
                    each,
                    element(emit.gep(arguments[0], lane, each), part, each),
                    size // parts,
                    PLAIN,
                    None,
                    None,
                )
                for part in range(parts)
            ]
        )
        converted = emit.elements(machine.cast(value, before, after, signed))
        for number, scalar in enumerate(converted):
            spread = arith.muli(machine.thread_id(), emit.i32(count))
            where = emit.gep(arguments[1], spread, scalar.type)
            single = emit.splat(scalar, 1)
            machine.store(
                single,
                element(where, number, scalar.type),
                emit.width_of(scalar.type) // 8,
                PLAIN,
                None,
            )

    return body


@pytest.mark.parametrize("chip", [name for name in CHIPS if CHIPS[name].fp8 == "ocp"])
def test_fp8_converts_two_at_a_time_and_is_clamped_first(chip: str) -> None:
    for name, short, most in (("f8E4M3FN", "fp8", 448), ("f8E5M2", "bf8", 57344)):
        assert (name, "f32") in conversions(CHIPS[chip])
        text = assembly(chip, [POINTER] * 2, cast(name, "f32"))
        assert len(re.findall(rf"v_cvt_pk_f32_{short}", text)) == 4
        text = assembly(chip, [POINTER] * 2, cast("f32", name))
        assert len(re.findall(rf"v_cvt_pk_{short}_f32", text)) == 4
        bits = np.float32(most).view(np.uint32)
        assert f"0x{bits:08x}" in text
        assert re.search("v_maximum|v_minimum", text)


@pytest.mark.parametrize("chip", [name for name in CHIPS if CHIPS[name].fp8 == "ocp"])
@pytest.mark.parametrize("name", ["f8E4M3FN", "f8E5M2"])
def test_fp8_of_another_lane_converts(chip: str, name: str) -> None:
    """LLVM dies on RDNA of a conversion that reads its operand by DPP."""

    def body(machine: AmdMachine, arguments: Arguments) -> None:
        word = machine.shuffle_xor(words(machine, arguments[0]), 1)
        before, after = ir.Type.parse(name), ir.F32Type.get()
        keep(
            machine,
            arguments[1],
            machine.cast(emit.from_words([word], before), before, after, True),
        )

    text = assembly(chip, [POINTER] * 2, body)
    assert "_dpp" in text
    assert "v_cvt_pk_f32" in text


def test_fp8_of_other_encodings_is_not_taken_for_ours() -> None:
    for chip in ("gfx90a", "gfx942", "gfx1100"):
        assert not [pair for pair in conversions(CHIPS[chip]) if "f8E4M3FN" in pair]

    def body(machine: AmdMachine, arguments: Arguments) -> None:
        f16, f64 = ir.F16Type.get(), ir.F64Type.get()
        machine.cast(emit.constant(f16, 1), f16, f64, signed=True)

    with pytest.raises(CompilerBug, match="expected a conversion that the chip has"):
        build("gfx942", [POINTER], body)


@pytest.mark.parametrize("chip", CHIPS)
def test_conversions_to_32_bit_integers_saturate(chip: str) -> None:
    for source in ("f32", "f64"):
        for signed, short in ((True, "i32"), (False, "u32")):
            text = assembly(chip, [POINTER] * 2, cast(source, "i32", signed=signed))
            assert len(re.findall(rf"v_cvt_{short}_{source}", text)) == 8
            # Both ends and NaN.
            assert len(re.findall("v_cmp|v_max|v_min|v_med3", text)) >= 2 * 8


# What does not exist here.


def test_printing_says_where_it_works() -> None:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        machine.print_line("%d", [machine.thread_id()])

    with pytest.raises(KernelError) as raised:
        build("gfx942", [POINTER], body)
    assert str(raised.value) == (
        "device_print does not work on AMD GPUs\n"
        '  hint: run the kernel on the host, as under `tile.device("host")`, where it prints'
    )


def test_stop_traps() -> None:
    def body(machine: AmdMachine, arguments: Arguments) -> None:
        machine.stop("no")

    assert "s_trap 2" in assembly("gfx1100", [POINTER], body)


def test_what_the_pipeline_never_asks_for_is_a_bug() -> None:
    machine = AmdMachine(CHIPS["gfx942"], 4)
    for ask in (machine.async_commit, lambda: machine.async_wait(0)):
        with pytest.raises(CompilerBug, match="on AMD, whose pipeline makes none"):
            ask()
