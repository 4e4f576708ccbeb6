"""How many threads a warp has, which bounds the warps of a program: it has at most 1024 threads."""

from __future__ import annotations

from collections.abc import Callable

from tiledsl.arrays import read
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.launch import chip_of, choose_place
from tiledsl.targets.target import find


def warp_size(array: object) -> int:
    """Return how many threads the warps of a kernel have that is launched with an array.

    32 on NVIDIA's chips and AMD's RDNA, 64 on AMD's CDNA; 32 on the host, which has no warps.

    Args:
        array: As a launch takes it; one of NumPy counts for the device that is chosen.

    Raises:
        KernelError: It is no array, or there is no such device.
    """
    found = read(array)
    if found is None:
        raise KernelError(f"warp_size: expected an array, found {type(array).__name__}")
    owner, chip = find(chip_of(choose_place([""], [found[2]])))
    threads: Callable[[str], int] | None = getattr(owner, "warp_size", None)
    return 32 if threads is None else threads(chip)
