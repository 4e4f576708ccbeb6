import ctypes
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.amdgpu.chips import chip
from tiledsl.targets.amdgpu.driver import HipDriver, driver
from tiledsl.targets.amdgpu.hip_library import Properties, hip_library
from tiledsl.targets.amdgpu.link import link
from tiledsl.targets.arguments import ArgumentLayout
from tiledsl.targets.driver import DeviceInfo, Driver, Grid, Kernel, LaunchOptions

from ..fake_library import fake_library
from .fake_hip import LAUNCHED
from .samples import SCALE, TABLES, compiled

ARGUMENTS = ArgumentLayout(("ptr", "i32", "f32"))


@dataclass(frozen=True)
class Launch:
    entry: str
    grid: Grid
    block: Grid
    shared: int
    stream: int
    arguments: bytes
    device: int


@dataclass
class Fake:
    """A driver on the fake library, and what was launched through it."""

    driver: HipDriver
    library: ctypes.CDLL
    launches: list[Launch] = field(default_factory=list[Launch])

    def fail(self, function: str, status: int) -> None:
        self.library.fake_fail(function.encode(), status)

    def current(self) -> int:
        device = ctypes.c_int(-1)
        assert self.library.hipGetDevice(ctypes.byref(device)) == 0
        return device.value


@pytest.fixture
def fake(tmp_path: Path):
    path, library = fake_library(Path(__file__).with_name("fake_hip.c"), tmp_path)
    made = Fake(HipDriver(hip_library(path)), library)

    @LAUNCHED
    def launched(
        entry: bytes, shape: Any, stream: int, data: int, size: int, device: int, *image: int
    ) -> int:
        del image
        arguments = ctypes.string_at(data, size)
        grid, block = tuple(shape[:3]), tuple(shape[3:6])
        made.launches.append(
            Launch(entry.decode(), grid, block, shape[6], stream, arguments, device)
        )
        if entry == b"scale":
            run_scale(arguments, block[0])
        return 0

    library.fake_on_launch(launched)
    yield made
    assert library.fake_live_marks() == 0, "a stream or an event was left"


def run_scale(arguments: bytes, threads: int) -> None:
    """Do what the kernel `scale` does, on the addresses that it was launched with."""
    address, _, by = struct.unpack("<Qif", arguments)
    if address:
        values = (ctypes.c_float * threads).from_address(address)
        for i in range(threads):
            values[i] *= by


def scale(name: str = "gfx942") -> bytes:
    return link(compiled(SCALE, name))


def satisfies(driver: Driver, kernel: Kernel) -> None:
    """Check, when types are, that the classes satisfy the Protocols."""


def test_devices_are_described_and_a_chip_not_in_the_table_keeps_its_own_name(fake: Fake):
    assert fake.driver.devices() == [
        DeviceInfo(0, "Fake Instinct", "gfx942", True, 192 << 30, 304, 65536),
        DeviceInfo(1, "Fake Radeon", "gfx1030", False, 24 << 30, 48, 65536),
    ]
    assert fake.driver.version() == (6, 2)
    with pytest.raises(KernelError, match=r"expected an AMD chip among .*, found 'gfx1030'"):
        chip(fake.driver.devices()[1].chip)


def test_the_property_structure_has_hips_size_and_places():
    assert ctypes.sizeof(Properties) == 1472
    assert Properties.chip.offset == 1160
    assert Properties.warp_size.offset == 308


def test_a_kernel_runs_end_to_end_on_numpy_arrays(fake: Fake):
    kernel = fake.driver.load(scale(), "scale", 0)
    satisfies(fake.driver, kernel)
    source = np.arange(256, dtype=np.float32)
    address = fake.driver.allocate(source.nbytes)
    fake.driver.copy_in(address, source)
    kernel.launch((1, 1, 1), 256, ARGUMENTS.pack((address, 256, 3.0)))
    back = np.empty_like(source)
    fake.driver.copy_out(back, address)
    fake.driver.free(address)
    np.testing.assert_array_equal(back, 3 * source)
    assert fake.library.fake_live_blocks() == 0


def test_a_launch_carries_grid_threads_stream_shared_memory_and_arguments(fake: Fake):
    kernel = fake.driver.load(scale(), "scale", 1000)
    stream = fake.driver.create_stream()
    arguments = ARGUMENTS.pack((0, -1, 1.5))
    kernel.launch((3, 4, 5), 128, arguments)
    kernel.launch((3, 1, 1), 64, arguments, stream)
    assert fake.launches == [
        Launch("scale", (3, 4, 5), (128, 1, 1), 1000, 0, arguments, 0),
        Launch("scale", (3, 1, 1), (64, 1, 1), 1000, stream, arguments, 0),
    ]
    fake.driver.destroy_stream(stream)


def test_an_empty_grid_launches_nothing(fake: Fake):
    kernel = fake.driver.load(scale(), "scale", 0)
    kernel.launch((0, 1, 1), 64, ARGUMENTS.pack((0, 0, 0)))
    assert fake.launches == []


def test_packed_arguments_lie_where_the_code_object_says(fake: Fake):
    kernel = fake.driver.load(scale(), "scale", 0)
    assert tuple(a.offset for a in kernel.metadata.arguments) == ARGUMENTS.offsets
    with pytest.raises(CompilerBug, match="scale takes 16 bytes of arguments, found 12"):
        kernel.launch((1, 1, 1), 64, bytes(12))


@pytest.mark.parametrize(
    ("grid", "threads", "message"),
    [
        ((1, 1, 1), 512, "expected 1 to 256 threads, found 512"),
        ((1, 1, 1), 0, "expected 1 to 256 threads, found 0"),
        ((2**24, 1, 1), 256, "expected a grid of 1 to 16777215 programs along x, found"),
        ((1, 1, 2**32), 256, "expected a grid of 1 to 4294967295 programs along z, found"),
    ],
)
def test_a_shape_that_hip_would_wrap_is_refused(fake: Fake, grid: Grid, threads: int, message: str):
    kernel = fake.driver.load(scale(), "scale", 0)
    with pytest.raises(KernelError) as error:
        kernel.launch(grid, threads, ARGUMENTS.pack((0, 0, 0)))
    assert str(error.value).startswith(message)
    assert fake.launches == []


def test_kernels_run_on_their_own_device_and_leave_the_current_one(fake: Fake):
    fake.library.fake_chip(1, b"gfx942")
    first = fake.driver.load(scale(), "scale", 0)
    second = fake.driver.load(scale(), "scale", 0, device=1)
    assert fake.current() == 0
    for kernel in (first, second, first):
        kernel.launch((1, 1, 1), 64, ARGUMENTS.pack((0, 0, 0)))
    assert [launch.device for launch in fake.launches] == [0, 1, 0]
    assert fake.current() == 0
    address = fake.driver.allocate(16, device=1)
    fake.driver.copy_in(address, np.zeros(4, np.float32), device=1)
    fake.driver.free(address, device=1)
    assert fake.current() == 0


def test_resources_come_from_the_code_object(fake: Fake):
    kernel = fake.driver.load(link(compiled(TABLES, "gfx942")), "lookup", 0)
    assert kernel.resources.shared_bytes == 256
    assert kernel.resources.spill_bytes == 0
    assert kernel.resources.registers > 0


def test_too_much_shared_memory_is_refused_with_a_hint(fake: Fake):
    with pytest.raises(KernelError) as error:
        fake.driver.load(link(compiled(TABLES, "gfx942")), "lookup", 65400)
    assert str(error.value) == (
        "lookup needs 65656 bytes of shared memory, this device has 65536 for one program\n"
        "  hint: use smaller tiles or fewer num_stages"
    )


def test_what_amd_does_not_have_is_refused(fake: Fake):
    with pytest.raises(KernelError, match="expected no clusters or dependent launches on AMD"):
        fake.driver.load(scale(), "scale", 0, options=LaunchOptions(programmatic=True))
    with pytest.raises(CompilerBug, match=r"no kernel other, only \['scale'\]"):
        fake.driver.load(scale(), "other", 0)


def test_a_fault_of_an_earlier_kernel_is_told_by_name_and_hint(fake: Fake):
    kernel = fake.driver.load(scale(), "scale", 0)
    fake.fail("hipDeviceSynchronize", 700)
    with pytest.raises(KernelError) as error:
        fake.driver.synchronize()
    assert str(error.value) == (
        "hipDeviceSynchronize failed: hipErrorIllegalAddress "
        "(an illegal memory access was encountered)\n"
        "  hint: a kernel accessed memory outside its arrays; an emulator finds the access"
    )
    fake.fail("hipModuleLaunchKernel", 700)
    with pytest.raises(KernelError, match=r"(?s)IllegalAddress.*scale, grid \(1, 2, 3\), 64 thr"):
        kernel.launch((1, 2, 3), 64, ARGUMENTS.pack((0, 0, 0)))


def test_empty_arrays_are_allocated_and_copied_as_nothing(fake: Fake):
    empty = np.zeros((0, 5), np.float16)
    address = fake.driver.allocate(empty.nbytes)
    fake.driver.copy_in(address, empty)
    fake.driver.copy_out(empty, address)
    fake.driver.free(address)
    assert fake.library.fake_live_blocks() == 0


def test_out_of_memory_is_a_kernel_error_with_a_hint(fake: Fake):
    with pytest.raises(KernelError, match=r"(?s)hipErrorOutOfMemory.*hint: free arrays"):
        fake.driver.allocate(1 << 40)


def test_a_capture_is_told_and_not_broken_by_loading(fake: Fake):
    stream = fake.driver.create_stream()
    assert not fake.driver.is_capturing(stream)
    fake.library.fake_capturing(1)
    assert fake.driver.is_capturing(stream)
    assert not fake.driver.is_capturing(0)
    fake.driver.load(scale(), "scale", 0)
    assert fake.library.fake_capture_mode() == 0
    fake.library.fake_capturing(0)
    fake.driver.destroy_stream(stream)


def test_events_measure_the_devices_own_time(fake: Fake):
    kernel = fake.driver.load(scale(), "scale", 0)
    start = fake.driver.record_event()
    kernel.launch((1, 1, 1), 64, ARGUMENTS.pack((0, 0, 0)))
    end = fake.driver.record_event()
    assert fake.driver.elapsed_ms(start, end) == 0.25
    fake.driver.destroy_event(start)
    fake.driver.destroy_event(end)


def test_a_device_that_is_not_there_is_a_kernel_error(fake: Fake):
    with pytest.raises(KernelError, match="expected a HIP device below 2, found hip:-1"):
        fake.driver.allocate(4, device=-1)


@pytest.mark.parametrize("status", [0, 100, 101])
def test_a_machine_whose_library_shows_no_device_is_a_kernel_error(fake: Fake, status: int):
    fake.library.fake_devices(0)
    fake.fail("hipInit", status)
    with pytest.raises(KernelError, match="AMD's HIP library shows no device"):
        fake.driver.devices()


def test_a_library_that_cannot_start_is_a_kernel_error_with_its_words(fake: Fake):
    fake.fail("hipInit", 3)
    with pytest.raises(KernelError, match=r"hipInit failed: hipErrorUnknown \(words\)"):
        fake.driver.devices()


def test_a_machine_without_the_library_is_a_kernel_error_at_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TILEDSL_LIBAMDHIP64", "/nowhere/libamdhip64.so")
    with pytest.raises(KernelError) as error:
        HipDriver(hip_library()).devices()
    assert str(error.value).startswith("AMD's HIP library was not found (/nowhere/libamdhip64.so: ")


def test_the_process_has_one_driver_made_without_touching_hardware():
    assert driver() is driver()
    assert driver().name == "hip"
