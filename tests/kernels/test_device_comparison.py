"""The comparison of a device with the emulator, where another emulator stands in for the device."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.device_comparison import UNORDERED, Comparison, Difference
from tiledsl import launch
from tiledsl.targets.driver import Grid
from tiledsl.targets.gpu.emulator.driver import EmulatedKernel, EmulatorDriver
from tiledsl.targets.nvptx import ptxas
from tiledsl.targets.nvptx.emulator.approximations import computed_by

_CHIP = "sm_90a"


_DEVICE = EmulatorDriver(_CHIP)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Generator[EmulatorDriver]:
    """Something that says it is the CUDA device."""
    others = launch._driver  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(
        launch, "_driver", lambda vendor: _DEVICE if vendor == "cuda" else others(vendor)
    )
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    launch.device_info.cache_clear()
    yield _DEVICE
    launch.device_info.cache_clear()


@tile.jit
def scale(x, out, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, tile.exp2(tile.load(x + i, mask=i < n)) * 3, mask=i < n)


def _scaled(n: int = 1000) -> None:
    x = np.linspace(-3, 3, n, dtype=np.float32)
    out = np.zeros(n, np.float32)
    with tile.device("cuda"):
        scale[tile.cdiv(n, 256),](x, out, n, BLOCK=256, fast_math=True)
    np.testing.assert_allclose(out, np.exp2(x) * 3, rtol=1e-2)


def test_equal_memory_is_counted_as_such(device: EmulatorDriver) -> None:
    comparison = Comparison(device, _CHIP)
    with comparison.watching():
        _scaled()
    assert comparison.counts == {"equal": 1}


def test_approximate_instructions_are_the_devices(device: EmulatorDriver) -> None:
    @tile.jit
    def power(x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(out + i, tile.exp2(tile.load(x + i)))

    def rough(opcode: str, kind: str, operands: Sequence[Any]) -> Any:
        return np.exp2(operands[0]) * np.float32(1.125)

    comparison = Comparison(device, _CHIP)
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with comparison.watching(), computed_by(rough), tile.device("cuda"):
        power[1,](x, out, N=64, fast_math=True)
    assert (out == 1.125).all()
    assert comparison.counts == {"equal": 1}


@pytest.fixture
def wrong(device: EmulatorDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device get one bit of the second argument's array wrong."""
    run = EmulatedKernel.launch

    def launch_wrongly(
        self: EmulatedKernel, grid: Grid, threads: int, arguments: bytes, stream: int = 0
    ) -> None:
        run(self, grid, threads, arguments, stream)
        if self.driver is device and self.entry == "scale":
            address = int(np.frombuffer(arguments[8:16], np.uint64)[0])
            device.memory.bytes_at(address, 4)[0] ^= 1

    monkeypatch.setattr(EmulatedKernel, "launch", launch_wrongly)


@pytest.mark.usefixtures("wrong")
def test_one_wrong_bit_is_a_difference(device: EmulatorDriver) -> None:
    comparison = Comparison(device, _CHIP)
    with comparison.watching(), pytest.raises(Difference, match=r"scale: .* 1 of 8000 bytes"):
        _scaled()
    assert comparison.counts == {"different": 1}


@pytest.mark.usefixtures("wrong")
def test_what_depends_on_the_order_of_programs_counts_as_such(device: EmulatorDriver) -> None:
    comparison = Comparison(device, _CHIP)
    comparison.name = f"{UNORDERED[0]}[cuda-4]"
    with comparison.watching():
        _scaled()
    assert comparison.counts == {"in another order": 1}


def test_memory_of_another_library_is_not_compared(device: EmulatorDriver) -> None:
    x = device.allocate(4000)  # before anybody watches
    _scaled()
    comparison = Comparison(device, _CHIP)
    loaded = scale._loaded  # pyright: ignore[reportPrivateUsage]
    with comparison.watching():
        next(iter(loaded.values())).launch((1, 1, 1), [x, x, 0], 0)
    assert comparison.counts == {"memory that another library allocated": 1}
    device.free(x)
