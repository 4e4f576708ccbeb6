"""Whole launches through HIP's driver code: compile, link, load, pack, launch, copy back.

What stands in for HIP checks each call and hands launches to the emulator (`fake_hip`), so that a
wrong offset in the arguments, a wrong grid or a wrong copy is a wrong result here.
"""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Generator

import ml_dtypes
import numpy as np
import pytest

import tiledsl as tile
from tests.targets.amdgpu.fake_hip import CHIPS, EmulatedHip, emulated_hip
from tests.targets.amdgpu.samples import SCALE, compiled
from tiledsl import launch
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.amdgpu.driver import HipKernel
from tiledsl.targets.amdgpu.link import link
from tiledsl.targets.arguments import ArgumentLayout


@pytest.fixture(scope="module")
def hip(tmp_path_factory: pytest.TempPathFactory) -> Generator[EmulatedHip]:
    with emulated_hip(tmp_path_factory.mktemp("hip")) as fake:
        yield fake


@pytest.fixture(params=range(len(CHIPS)), ids=CHIPS)
def device(request: pytest.FixtureRequest, hip: EmulatedHip) -> Generator[int]:
    """The number of a device that launches go to."""
    hip.faults.clear()
    hip.launches.clear()
    with tile.device(f"hip:{request.param}"):
        yield request.param


@tile.jit
def scalars(flag, a8, out, a16, b16, wide, u8, x32, half, x64, brain, u64, count):
    tile.store(out + 0, flag.to(tile.float64))
    tile.store(out + 1, a8.to(tile.float64))
    tile.store(out + 2, a16.to(tile.float64))
    tile.store(out + 3, b16.to(tile.float64))
    tile.store(out + 4, wide.to(tile.float64))
    tile.store(out + 5, u8.to(tile.float64))
    tile.store(out + 6, x32.to(tile.float64))
    tile.store(out + 7, half.to(tile.float64))
    tile.store(out + 8, x64.to(tile.float64))
    tile.store(out + 9, brain.to(tile.float64))
    tile.store(out + 10, u64.to(tile.float64))
    tile.store(out + 11, count.to(tile.float64))


def test_scalars_of_every_kind_arrive(device: int) -> None:
    values = (
        np.bool_(True), np.int8(-100), np.int16(-30000), np.uint16(60000), np.int64(-(1 << 40)),
        np.uint8(200), np.float32(1.5), np.float16(-0.25), np.float64(1e300),
        ml_dtypes.bfloat16(3.140625), np.uint64(1 << 63), -7,
    )  # fmt: skip
    out = np.zeros(12)
    scalars[1,](*values[:2], out, *values[2:])
    assert out.tolist() == [float(value) for value in values]


@tile.jit
def eight_bits(small, out, fine, number):
    tile.store(out, small.to(tile.float32))
    tile.store(out + 1, fine.to(tile.float32))
    tile.store(out + 2, number)


def test_floats_of_eight_bits_and_plain_numbers_arrive(device: int) -> None:
    out = np.zeros(3, np.float32)
    eight_bits[1,](ml_dtypes.float8_e4m3fn(-1.125), out, ml_dtypes.float8_e5m2(0.375), 2.5)
    assert out.tolist() == [-1.125, 0.375, 2.5]


@tile.jit
def places(out, AXES: tile.constexpr):
    x, y, z = (tile.program_id(axis) for axis in range(3))
    nx, ny, nz = (tile.num_programs(axis) for axis in range(3))
    at = out + ((z * ny + y) * nx + x) * 6
    tile.store(at + 0, x)
    tile.store(at + 1, y)
    tile.store(at + 2, z)
    tile.store(at + 3, nx)
    tile.store(at + 4, ny)
    tile.store(at + 5, nz)


@pytest.mark.parametrize("grid", [(5,), (1,), (3, 4), (1, 7), (2, 3, 4), (1, 1, 5)])
def test_each_program_knows_its_place_in_the_grid(
    hip: EmulatedHip, device: int, grid: tuple[int, ...]
) -> None:
    x, y, z = (*grid, 1, 1)[:3]
    out = np.full((z, y, x, 6), -1, np.int32)
    places[grid](out, AXES=len(grid), num_warps=2)
    expected = np.empty_like(out)
    expected[..., 2], expected[..., 1], expected[..., 0] = np.indices((z, y, x))
    expected[..., 3:] = x, y, z
    assert np.array_equal(out, expected)
    threads = 2 * (64 if device == 0 else 32)
    assert hip.launches == [("places", (x, y, z), (threads, 1, 1), device)]


def test_an_empty_grid_runs_nothing(hip: EmulatedHip, device: int) -> None:
    out = np.full((1, 6), -1, np.int32)
    places[3, 0](out, AXES=2)
    assert hip.launches == []
    assert (out == -1).all()


@tile.jit
def add(x, y, out, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    mask = i < n
    tile.store(out + i, tile.load(x + i, mask=mask) + tile.load(y + i, mask=mask), mask=mask)


def test_arrays_go_there_and_back(device: int) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 1003), np.float32)
    out = np.zeros_like(x)
    add[tile.cdiv(1003, 256),](x, y, out, 1003, BLOCK=256)
    np.testing.assert_array_equal(out, x + y)
    add[4,](out, out, out, 1003, BLOCK=256)
    np.testing.assert_array_equal(out, 2 * (x + y))
    add[1,](x[:0], y[:0], out[:0], 0, BLOCK=256)


@tile.jit
def product(a, b, c, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
    m, n, k = tile.arange(0, M), tile.arange(0, N), tile.arange(0, K)
    left = tile.load(a + m[:, None] * K + k[None, :])
    right = tile.load(b + k[:, None] * N + n[None, :])
    tile.store(c + m[:, None] * N + n[None, :], tile.dot(left, right))


def test_a_product_by_matrix_instructions_through_lds(device: int) -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, (64, 32)).astype(np.float16)
    b = rng.integers(-4, 5, (32, 64)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    product[1,](a, b, c, M=64, N=64, K=32)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


@tile.jit
def count(x, bins, total, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i, mask=i < n, other=0)
    tile.atomic_add(bins + value, 1, mask=i < n)
    tile.atomic_add(total, tile.sum(value, axis=0))


def test_atomics_and_reductions_of_many_programs(device: int) -> None:
    x = np.random.default_rng(2).integers(0, 10, 1000).astype(np.int32)
    bins, total = np.zeros(10, np.int32), np.zeros(1, np.int32)
    count[4,](x, bins, total, 1000, BLOCK=256)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=10))
    assert total[0] == x.sum()


# --- what is refused, as a user sees it ----------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((1 << 31,), "grid: expected 0 to 2147483647 programs on axis 0, found 2147483648"),
        ((1, 1 << 16), "grid: expected 0 to 65535 programs on axis 1, found 65536"),
        ((1, 1, 1 << 16), "grid: expected 0 to 65535 programs on axis 2, found 65536"),
        ((1 << 26,), "expected a grid of 1 to .* programs along x, found"),
        ((-1,), "grid: expected 0 to 2147483647 programs on axis 0, found -1"),
    ],
)
def test_a_grid_beyond_the_machine_is_refused(
    hip: EmulatedHip, device: int, grid: tuple[int, ...], message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        places[grid](np.zeros(6, np.int32), AXES=1)
    assert hip.launches == []


def test_an_access_beyond_an_array_is_told_as_hip_tells_it(hip: EmulatedHip, device: int) -> None:
    with pytest.raises(KernelError, match=r"(?s)hipErrorIllegalAddress.*add, grid \(2, 1, 1\)"):
        add[2,](*(np.zeros(100, np.float32) for _ in range(3)), 300, BLOCK=256)
    (fault,) = hip.faults
    assert "out-of-bounds access" in fault


def test_code_for_another_chip_is_refused_with_a_hint(device: int) -> None:
    other = CHIPS[1 - device]
    with pytest.raises(KernelError) as error:
        launch.driver_of("hip").load(link(compiled(SCALE, other)), "scale", 0, device)
    told = str(error.value)
    assert told.startswith("hipModuleLoadData failed: hipErrorNoBinaryForGpu")
    assert "hint: the code is for another chip than this device's" in told


def test_what_the_driver_should_not_have_asked_for_is_refused_by_hip_too(
    monkeypatch: pytest.MonkeyPatch, hip: EmulatedHip, device: int
) -> None:
    def unchecked(*arguments: object) -> None:
        del arguments

    monkeypatch.setattr(HipKernel, "_check", unchecked)
    kernel = launch.driver_of("hip").load(link(compiled(SCALE, CHIPS[device])), "scale", 0, device)
    arguments = ArgumentLayout(("ptr", "i32", "f32")).pack((0, 1, 2.0))
    for wrong in (arguments[:-4], arguments + bytes(4)):
        with pytest.raises(KernelError, match=r"(?s)hipErrorInvalidValue.*scale, grid \(1, 1, 1\)"):
            kernel.launch((1, 1, 1), 64, wrong)
    for grid, threads in (((1, 1, 1), 512), ((1, 1, 1), 2048), ((1 << 25, 1, 1), 256)):
        with pytest.raises(KernelError, match="hipErrorInvalidValue"):
            kernel.launch(grid, threads, arguments)
    assert hip.launches == []


def test_a_device_that_is_not_there_and_a_chip_that_is_not_known_are_refused(
    hip: EmulatedHip, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        tile.device("hip:2"),
        pytest.raises(KernelError, match="expected a device among 2 of kind"),
    ):
        places[1,](np.zeros(6, np.int32), AXES=1)
    hip.library.fake_chip(1, b"gfx1030")
    launch.device_info.cache_clear()
    try:
        with tile.device("hip:1"), pytest.raises(KernelError, match="found 'gfx1030'"):
            places[1,](np.zeros(6, np.int32), AXES=7)
    finally:
        hip.library.fake_chip(1, CHIPS[1].encode())
        launch.device_info.cache_clear()
