"""From the llvm level to a linked code object: what the artifact says must be what the object is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mlir import ir
from mlir.dialects import arith, llvm

from tests.targets.amdgpu.by_hand import POINTER, Body, build, compiled, element
from tiledsl.dialects.contracts import LLVM
from tiledsl.targets.amdgpu import assemble as assembling
from tiledsl.targets.amdgpu import target as amdgpu
from tiledsl.targets.amdgpu.chips import CHIPS, MAX_GRID, Chip
from tiledsl.targets.amdgpu.code_object import kernels
from tiledsl.targets.amdgpu.elf import ElfFile
from tiledsl.targets.amdgpu.lower import AmdMachine
from tiledsl.targets.amdgpu.pipeline import TO_LLVM
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import PLAIN
from tiledsl.targets.llvm_codegen import Emitted
from tiledsl.transforms import run

_TYPES = [POINTER, "i8", "i64", "i32"]


def ragged_copy(machine: AmdMachine, arguments: Sequence[ir.Value]) -> None:
    """Copy 16 bytes a lane where the lane's number is below a count, zeros elsewhere."""
    pointer, _, _, count = arguments
    type_ = emit.vector_of(4, emit.integer(32))
    predicate = emit.compare("slt", machine.thread_id(), count)
    here = element(pointer, machine.thread_id(), type_)
    loaded = machine.load(type_, here, 16, PLAIN, predicate, emit.zero(type_))
    there = element(pointer, arith.addi(machine.thread_id(), count), type_)
    machine.store(loaded, there, 16, PLAIN, None)


@pytest.mark.parametrize("chip", CHIPS)
def test_an_artifact_is_a_loadable_code_object_and_says_what_it_takes(chip: str) -> None:
    artifact = compiled(chip, _TYPES, ragged_copy, num_warps=2)
    metadata = kernels(artifact.binary)["k"]
    assert ElfFile(artifact.binary).header.type == 3  # ET_DYN
    assert artifact.texts["hsaco"] == artifact.binary
    assert list(artifact.texts) == ["llvm", "amdgcn", "hsaco"]
    assert artifact.entry == "k"
    assert artifact.threads == metadata.max_workgroup == 2 * CHIPS[chip].wave_size
    assert metadata.wave_size == CHIPS[chip].wave_size
    assert artifact.resources == metadata.resources
    # Natural alignment, nothing hidden behind the last argument.
    assert [a.offset for a in metadata.arguments] == [0, 8, 16, 24]
    assert metadata.kernarg_bytes == 28


def test_the_zeros_that_masked_lanes_read_are_linked_in() -> None:
    artifact = compiled("gfx942", _TYPES, ragged_copy)
    assert ".rodata" in [section.name for section in ElfFile(artifact.binary).sections]
    assert "tiledsl.zeros@rel32@lo" in str(artifact.texts["amdgcn"])


def test_lowering_ends_at_the_llvm_level() -> None:
    module = build("gfx1201", _TYPES, ragged_copy)
    run.run(module, [TO_LLVM])
    assert TO_LLVM.level is LLVM


def test_the_target_knows_its_chips_and_limits() -> None:
    assert list(amdgpu.chips()) == list(CHIPS)
    assert amdgpu.grid_limits("gfx942") == MAX_GRID


@pytest.mark.parametrize(
    ("chip", "num_warps", "shared_bytes", "wanted"),
    [
        ("gfx942", 4, 0, 1.0),
        ("gfx942", 4, 32 << 10, 2 * 4 / 32),  # two workgroups share 64 KiB of LDS
        ("gfx950", 4, 32 << 10, 4 * 4 / 32),  # of 160 KiB, in units of 1280 bytes
        ("gfx1100", 4, 32 << 10, 4 * 4 / 64),  # a pair of compute units has 128 KiB
    ],
)
def test_occupancy_is_the_share_of_threads_that_fit(
    chip: str, num_warps: int, shared_bytes: int, wanted: float
) -> None:
    def body(machine: AmdMachine, arguments: Sequence[ir.Value]) -> None:
        if shared_bytes:
            llvm.store(machine.thread_id(), machine.shared_base())

    artifact = compiled(chip, [POINTER], body, num_warps, shared_bytes)
    assert amdgpu.occupancy(chip, artifact) == wanted


def many_live(count: int) -> Body:
    """Load so many words, wait for the others, store the words."""

    def body(machine: AmdMachine, arguments: Sequence[ir.Value]) -> None:
        type_ = emit.vector_of(4, emit.integer(32))
        lane = emit.gep(arguments[0], machine.thread_id(), emit.vector_of(1024, emit.integer(32)))
        places = [element(lane, i, type_) for i in range(count // 4)]
        words = [machine.load(type_, place, 16, PLAIN, None, None) for place in places]
        machine.barrier("all", proxy=False)
        for word, place in zip(reversed(words), places, strict=True):
            machine.store(word, place, 16, PLAIN, None)

    return body


def test_a_kernel_that_would_spill_a_little_is_scheduled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    emit_code = assembling.emit

    def spying(text: str, chip: Chip) -> Emitted:
        tried.append(text)
        return emit_code(text, chip)

    monkeypatch.setattr(assembling, "emit", spying)
    for count, most in ((200, 1), (264, 6), (400, 1)):
        tried.clear()
        artifact = compiled("gfx1100", [POINTER], many_live(count), num_warps=2)
        assert 1 <= len(tried) <= most
        assert artifact.resources is not None
        assert bool(artifact.resources.spill_bytes) == (count > 256)
        if most > 1:
            assert '"amdgpu-num-vgpr"="248"' in tried[1]
            assert artifact.texts["llvm"] in tried


def test_what_widens_a_loaded_value_has_the_line_of_the_load() -> None:
    text = """define void @a(ptr %0) {
  %1 = load half, ptr %0, align 2, !dbg !5
  %2 = fpext half %1 to float, !dbg !6
  %3 = load <1 x i8>, ptr %0, align 1, !dbg !7
  %4 = zext <1 x i8> %3 to <1 x i32>, !dbg !8
  %5 = fpext float %2 to double, !dbg !9
}
define void @b(half %1) {
  %2 = fpext half %1 to float, !dbg !10
}"""
    expected = text.replace("float, !dbg !6", "float, !dbg !5").replace("!dbg !8", "!dbg !7")
    assert assembling.with_lines_of_loads(text) == expected
