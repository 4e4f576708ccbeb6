"""Where a launch runs, and with which grid."""

import ctypes
from typing import Any

import numpy as np
import pytest

from tiledsl import launch
from tiledsl.arrays import HOST
from tiledsl.device import current, device, normalize
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.launch import check_grid, choose_place
from tiledsl.targets.gpu.emulator import settings

LIMITS = (2**31 - 1, 65535, 65535)


def test_arrays_decide_the_place() -> None:
    names = ["n", "x", "y"]
    assert choose_place(names, [None, "cuda:1", "cuda:1"]) == "cuda:1"
    assert choose_place(names, [None, HOST, HOST]) == HOST
    with device("cuda:1"):
        assert choose_place(names, [None, HOST, HOST]) == "cuda:1"
        assert choose_place(names[:1], [None]) == "cuda:1"
        assert choose_place(names, [None, "hip:0", "hip:0"]) == "hip:0"


def test_an_array_on_another_device_is_named() -> None:
    with pytest.raises(KernelError) as raised:
        choose_place(["n", "x", "y"], [None, "cuda:0", HOST])
    assert str(raised.value) == (
        "argument `y`: expected an array on cuda:0 like `x`, found one on host"
    )


@pytest.mark.parametrize(
    ("grid", "sizes"),
    [(3, (3, 1, 1)), ((3,), (3, 1, 1)), ([2, 3], (2, 3, 1)), ((np.int64(1), 2, 3), (1, 2, 3)), ((4, 0), None)],
)  # fmt: skip
def test_a_grid_is_one_to_three_integers(grid: object, sizes: object) -> None:
    assert check_grid(grid, LIMITS) == sizes


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((), "grid: expected one to three integers, found ()"),
        ((1, 1, 1, 1), "grid: expected one to three integers, found (1, 1, 1, 1)"),
        (np.array([1, 1]), "grid: expected integers, found array([1, 1]) on axis 0"),
        ((1.5,), "grid: expected integers, found 1.5 on axis 0"),
        ((-1,), "grid: expected 0 to 2147483647 programs on axis 0, found -1"),
        ((1, 65536), "grid: expected 0 to 65535 programs on axis 1, found 65536"),
        ((1, 1, 65536), "grid: expected 0 to 65535 programs on axis 2, found 65536"),
    ],
)
def test_a_wrong_grid_is_refused(grid: object, message: str) -> None:
    with pytest.raises(KernelError) as raised:
        check_grid(grid, LIMITS)
    assert str(raised.value) == message


def test_devices_have_one_spelling() -> None:
    assert [normalize(s) for s in ("cpu", "host", "cuda", "cuda:1", "hip")] == [
        "host", "host", "cuda:0", "cuda:1", "hip:0",
    ]  # fmt: skip
    assert normalize("emulate:gfx942") == "emulate:gfx942"
    for wrong in ("", "gpu", "host:0", "cuda:x", "emulate", "emulate:"):
        with pytest.raises(KernelError, match="expected a device"):
            normalize(wrong)


def test_a_chip_that_cannot_be_emulated_is_refused() -> None:
    with pytest.raises(KernelError, match=r"expected a target among .*sm_80.*, found 'sm_1'"):
        normalize("emulate:sm_1")
    with pytest.raises(KernelError, match="expected a GPU to emulate, found 'host'"):
        normalize("emulate:host")


def test_an_emulated_place_has_its_chip_in_its_name() -> None:
    assert launch.split_place("emulate:sm_80") == ("emulate:sm_80", 0)
    assert launch.chip_of("emulate:sm_80") == "sm_80"
    assert launch.current_stream("emulate:sm_80", []) == 0
    assert launch.device_info("emulate:gfx942").name == "emulated gfx942"


def test_only_emulated_devices_have_modes() -> None:
    with (
        pytest.raises(KernelError, match="mode: expected an emulated device, found 'host'"),
        device("host", mode="lazy"),
    ):
        pass
    with (
        pytest.raises(KernelError, match='mode: expected "lazy" or "eager", found 3'),
        device("emulate:sm_80", mode=3),  # pyright: ignore[reportArgumentType]
    ):
        pass
    with (
        pytest.raises(KernelError, match='findings: expected "error" or "warn", found 3'),
        device("emulate:sm_80", findings=3),  # pyright: ignore[reportArgumentType]
    ):
        pass


def test_the_mode_of_emulation_comes_from_the_device_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settings.current_mode() == "lazy"
    monkeypatch.setenv("TILEDSL_EMULATE_MODE", "eager")
    assert settings.current_mode() == "eager"
    with device("emulate:sm_80", mode="lazy", findings="warn"):
        assert (settings.current_mode(), settings.current().findings) == ("lazy", "warn")
    monkeypatch.setenv("TILEDSL_EMULATE_MODE", "busy")
    with pytest.raises(KernelError, match="TILEDSL_EMULATE_MODE: expected"):
        settings.current_mode()


def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_DEVICE", "cuda:1")
    assert current() == "cuda:1"
    with device("host"):
        assert current() == "host"
    monkeypatch.delenv("TILEDSL_DEVICE")
    assert current() == "host"


def test_a_missing_device_is_a_kernel_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDevices:
        def devices(self) -> list[object]:
            return []

    launch.device_info.cache_clear()
    monkeypatch.setattr(launch, "_driver", lambda vendor: NoDevices())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(KernelError, match="expected a device among 0 of kind cuda, found 'cuda:0'"):
        launch.chip_of("cuda:0")


class HostAsDevice:
    """A driver whose device memory is arrays of this process."""

    def __init__(self) -> None:
        self.memory: dict[int, np.ndarray[Any, Any]] = {}

    def allocate(self, size: int, device: int = 0) -> int:
        array = np.zeros(max(size, 1), np.uint8)
        self.memory[array.ctypes.data] = array
        return array.ctypes.data

    def free(self, address: int, device: int = 0) -> None:
        del self.memory[address]

    def copy_in(self, address: int, array: np.ndarray[Any, Any], device: int = 0) -> None:
        self.memory[address][: array.size] = array

    def copy_out(self, array: np.ndarray[Any, Any], address: int, device: int = 0) -> None:
        array[:] = self.memory[address][: array.size]

    def synchronize(self, device: int = 0) -> None:
        pass


def bytes_at(address: int, size: int) -> np.ndarray[Any, Any]:
    view: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(view, np.uint8)


def test_arrays_travel_to_the_device_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostAsDevice()
    monkeypatch.setattr(launch, "_driver", lambda vendor: driver)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    base = np.arange(64, dtype=np.uint8)
    # Neighbours that touch, an overlap, an empty array at the seam, and one that is read-only.
    arrays = [base[:16], base[16:32], base[24:40], base[16:16], np.arange(8, dtype=np.uint8)]
    arrays[4].flags.writeable = False
    given = [array.ctypes.data for array in arrays]
    with launch.on_device("cuda:0", given, dict(enumerate(arrays))) as values:
        addresses = [int(value) for value in values]
        for array, address in zip(arrays, addresses, strict=True):
            np.testing.assert_array_equal(bytes_at(address, array.size), array)
        assert addresses[2] - addresses[1] == 8
        for address, array in zip(addresses, arrays, strict=True):
            bytes_at(address, array.size)[:] += 100
    expected = np.arange(64, dtype=np.uint8)
    expected[:40] += 100
    expected[24:32] += 100
    np.testing.assert_array_equal(base, expected)
    np.testing.assert_array_equal(arrays[4], np.arange(8))
    assert not driver.memory


def test_device_memory_is_freed_when_a_launch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostAsDevice()
    monkeypatch.setattr(launch, "_driver", lambda vendor: driver)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    array = np.zeros(4, np.float32)
    with (
        pytest.raises(RuntimeError),
        launch.on_device("cuda:0", [array.ctypes.data], {0: array}),
    ):
        raise RuntimeError
    assert not driver.memory
