"""Run a PTX text where a driver runs it, and have a device compute approximate instructions.

The driver is CUDA's in tests marked `gpu`, and the emulator's where these helpers test themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.evaluating import columns_of
from tests.targets.nvptx.emulator.running import kernel
from tiledsl.targets.driver import Driver, Kernel
from tiledsl.targets.nvptx.emulator.operands import REGISTER, TYPES

Array = NDArray[Any]
CHIP = "sm_90a"
"""What is compared: the H200's."""
LOG_VARIABLE = "TILEDSL_COMPARISON_LOG"
"""Names a file that gets a line of JSON for each comparison."""


def record(**fields: object) -> None:
    """Append what a comparison found to the log, if there is one; each process has a file."""
    name = os.environ.get(LOG_VARIABLE)
    if name:
        with Path(f"{name}.{os.environ.get('PYTEST_XDIST_WORKER', 'main')}").open("a") as log:
            log.write(json.dumps(fields) + "\n")


def launch(
    driver: Driver, loaded: Kernel, arrays: Sequence[Array], *, threads: int, blocks: int
) -> list[Array]:
    """Run a kernel whose parameters are the arrays; returns them as it left them."""
    addresses = [driver.allocate(array.nbytes) for array in arrays]
    try:
        for address, array in zip(addresses, arrays, strict=True):
            driver.copy_in(address, np.ascontiguousarray(array))
        packed = np.array(addresses, np.uint64).tobytes()
        loaded.launch((blocks, 1, 1), threads, packed)
        driver.synchronize()
        left = [np.empty(array.shape, array.dtype) for array in arrays]
        for address, array in zip(addresses, left, strict=True):
            driver.copy_out(array, address)
    finally:
        for address in addresses:
            driver.free(address)
    return left


def run_text(
    driver: Driver, text: str, *arrays: Array, threads: int = 32, blocks: int = 1, entry: str = "k"
) -> list[Array]:
    """Run a text's kernel once."""
    loaded = driver.load(text.encode(), entry, 0)
    return launch(driver, loaded, arrays, threads=threads, blocks=blocks)


class Functions:
    """Computes single instructions on a device: an `approximations.Evaluate`."""

    def __init__(self, driver: Driver, chip: str = CHIP) -> None:
        self._driver = driver
        self._chip = chip
        self._loaded: dict[str, Kernel] = {}

    def __call__(self, opcode: str, kind: str, operands: Sequence[Any]) -> Any:
        """Return what an instruction gives for operands of a type."""
        given = np.broadcast_arrays(*operands)
        held = REGISTER[TYPES[kind].bits]
        words = [np.ascontiguousarray(one).reshape(-1).view(held) for one in given]
        names = ", ".join("{" + name + "}" for name in "dab"[: len(words) + 1])
        columns = columns_of(f"{opcode} {names}", words, (held,))
        loaded = self._loaded.get(opcode)
        if loaded is None:
            text = kernel(columns.body, len(columns.arrays), chip=self._chip)
            loaded = self._loaded[opcode] = self._driver.load(text.encode(), "k", 0)
        left = launch(self._driver, loaded, columns.arrays, threads=32, blocks=columns.blocks)
        return columns.found(left)[0].view(TYPES[kind].element).reshape(given[0].shape)
