"""A name is found to mean a target and a chip, and every target is what the Protocol says."""

import subprocess
import sys

import pytest

from tiledsl.dialects.contracts import LLVM, MACHINE, TGPU, TILE
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.amdgpu import target as amdgpu
from tiledsl.targets.host import target as host
from tiledsl.targets.nvptx import target as nvptx
from tiledsl.targets.target import Options, Target, find, target

TARGETS: dict[str, Target] = {"host": host, "nvptx": nvptx, "amdgpu": amdgpu}
"""The modules, not the packages: pyright checks here that they satisfy the Protocol."""
CHIPS = [(name, chip) for name, found in TARGETS.items() for chip in found.chips()]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_goes_by_its_name(name: str) -> None:
    found = target(name)
    assert (found, found.NAME) == (TARGETS[name], name)


@pytest.mark.parametrize(("name", "chip"), CHIPS)
def test_a_chip_is_found_with_the_target_that_compiles_for_it(name: str, chip: str) -> None:
    assert find(chip) == (TARGETS[name], chip)


def test_the_processor_goes_by_two_names() -> None:
    assert find("cpu") == find("host") == (host, "host")


@pytest.mark.parametrize("name", ["sm_90", "SM_80", "nvptx", ""])
def test_what_no_target_has_is_refused_with_all_there_are(name: str) -> None:
    with pytest.raises(KernelError) as raised:
        find(name)
    known = ", ".join(chip for _, chip in CHIPS)
    assert str(raised.value) == f"expected a target among {known}, found {name!r}"


@pytest.mark.parametrize(("name", "chip"), CHIPS)
def test_a_pipeline_goes_down_the_levels_to_what_is_assembled(name: str, chip: str) -> None:
    levels = [step.level for step in target(name).pipeline(chip, Options())]
    order = [TILE, TGPU, MACHINE, LLVM]
    assert levels == sorted(levels, key=order.index)
    assert (levels[0], levels[-1]) == (TILE, LLVM)


def test_finding_a_chip_and_its_driver_opens_no_library_and_loads_no_compiler() -> None:
    program = """
import ctypes, sys
ctypes.CDLL = None
from tiledsl.targets.target import find
names = [find(chip)[0].driver().name for chip in ("sm_80", "gfx942")]
print(*names, *(m for m in ("mlir", "llvmlite.binding", "cuda", "torch") if m in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["cuda", "hip"]
