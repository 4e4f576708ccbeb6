from dataclasses import fields

import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.llvm_codegen import Machine, optimize_and_emit
from tiledsl.targets.nvptx.chips import CHIPS, Chip, chip, chip_of_capability


def test_a_chip_is_found_by_name():
    assert chip("sm_90a").number == 90
    assert chip("sm_90a").wgmma


def test_an_unknown_chip_is_a_kernel_error_that_lists_the_known_ones():
    with pytest.raises(KernelError) as error:
        chip("sm_61")
    assert str(error.value) == (
        "expected an NVIDIA chip among sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120, found 'sm_61'"
    )


@pytest.mark.parametrize("each", CHIPS.values(), ids=str)
def test_llvm_emits_the_chips_name_and_ptx_version(each: Chip):
    machine = Machine("nvptx64-nvidia-cuda", each.name, each.features)
    text = optimize_and_emit("define ptx_kernel void @k() { ret void }", machine).assembly
    assert text is not None
    assert f".version {each.ptx // 10}.{each.ptx % 10}\n" in text
    assert f".target {each.name}\n" in text


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        # sm_100a code runs on nothing else, so its successors get PTX of the last portable chip.
        ((10, 3), "sm_89"),
        ((12, 0), "sm_120"),
        ((12, 1), "sm_120"),
    ],
)
def test_a_device_gets_the_best_chip_whose_code_it_runs(capability: tuple[int, int], name: str):
    found = chip_of_capability(*capability)
    assert found is not None
    assert found.name == name


def test_a_device_older_than_every_chip_has_none():
    assert chip_of_capability(7, 5) is None


def test_later_chips_lose_no_capability_but_those_of_one_architecture():
    lost_on_purpose = {"wgmma", "tcgen05", "setmaxnreg"}
    flags = [f.name for f in fields(Chip) if f.type == "bool" and f.name not in lost_on_purpose]
    for earlier in CHIPS.values():
        for later in (c for c in CHIPS.values() if c.number > earlier.number):
            assert all(later.supports(f) for f in flags if earlier.supports(f))


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90a", 128, 32, 0, 16),  # 64 warps
        ("sm_90a", 256, 255, 0, 1),  # 8 warps of 8192 registers fill the file
        ("sm_90a", 384, 168, 200 << 10, 1),
        ("sm_90a", 1024, 255, 0, 0),
        ("sm_80", 32, 16, 0, 32),
        ("sm_86", 128, 32, 49 << 10, 2),
        ("sm_86", 128, 32, 50 << 10, 1),
    ],
)
def test_resident_blocks_follow_the_scarcest_resource(
    name: str, threads: int, registers: int, shared: int, blocks: int
):
    assert chip(name).resident_blocks(threads, registers, shared) == blocks


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("warps", [*range(1, 17), 24, 31, 32])
def test_with_the_most_registers_a_block_fits_and_with_more_it_does_not(name: str, warps: int):
    each, threads = chip(name), 32 * warps
    most = each.most_registers(threads)
    assert each.resident_blocks(threads, most, 0) >= 1
    assert most == each.max_registers or each.resident_blocks(threads, most + 1, 0) == 0
