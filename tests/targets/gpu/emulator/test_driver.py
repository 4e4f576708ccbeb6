"""The emulator as a driver: memory, loading, launching, and what a launch reports."""

from __future__ import annotations

import numpy as np
import pytest

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.arguments import pack
from tiledsl.targets.driver import Driver, LaunchOptions
from tiledsl.targets.gpu.emulator import settings
from tiledsl.targets.gpu.emulator.driver import EmulatorDriver, text_of
from tiledsl.targets.gpu.emulator.report import Report

_PTX = """\
.version 8.0
.target sm_80
.address_size 64

.visible .entry double(
	.param .u64 double_param_0
)
{
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<4>;

	ld.param.u64 	%rd1, [double_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	ld.global.u32 	%r2, [%rd3];
	add.u32 	%r3, %r2, %r2;
	st.global.u32 	[%rd3], %r3;
	ret;
}
"""


@pytest.fixture(scope="module")
def driver() -> EmulatorDriver:
    return EmulatorDriver("sm_80")


def test_it_is_a_driver(driver: EmulatorDriver) -> None:
    as_protocol: Driver = driver  # what pyright checks
    (device,) = as_protocol.devices()
    assert (device.chip, device.name, device.native) == ("sm_80", "emulated sm_80", True)
    assert device.shared_bytes == 163 << 10


def test_a_kernel_runs_on_device_memory(driver: EmulatorDriver) -> None:
    kernel = driver.load(_PTX.encode(), "double", 0)
    array = np.arange(32, dtype=np.int32)
    address = driver.allocate(array.nbytes)
    driver.copy_in(address, array)
    kernel.launch((1, 1, 1), 32, pack([("ptr", address)]))
    kernel.launch((0, 1, 1), 32, pack([("ptr", address)]))
    driver.synchronize()
    out = np.zeros_like(array)
    driver.copy_out(out, address)
    np.testing.assert_array_equal(out, array * 2)
    driver.free(address)


def test_faults_raise_warn_or_are_reported(driver: EmulatorDriver) -> None:
    kernel = driver.load(_PTX.encode(), "double", 0)
    address = driver.allocate(64)
    driver.copy_in(address, np.zeros(16, np.int32))
    arguments = pack([("ptr", address)])
    with pytest.raises(KernelError, match="kernel `double`: out-of-bounds access: read of 4 bytes"):
        kernel.launch((1, 1, 1), 32, arguments)
    with settings.use(findings="warn"), pytest.warns(RuntimeWarning, match="16 times"):
        kernel.launch((1, 1, 1), 32, arguments)
    reports: list[Report] = []
    with settings.use(findings="report", report=reports.append):
        kernel.launch((1, 1, 1), 32, arguments)
    (report,) = reports
    assert [finding.times for finding in report.findings] == [16, 16]
    assert report.executed["global memory"] == 2
    driver.free(address)


def test_reading_new_memory_is_a_finding(driver: EmulatorDriver) -> None:
    kernel = driver.load(_PTX.encode(), "double", 0)
    address = driver.allocate(128)
    with pytest.raises(KernelError, match="read of memory that nothing wrote"):
        kernel.launch((1, 1, 1), 32, pack([("ptr", address)]))
    driver.free(address)


def test_empty_allocations_are_allowed(driver: EmulatorDriver) -> None:
    address = driver.allocate(0)
    driver.copy_in(address, np.zeros(0, np.float32))
    driver.copy_out(np.zeros(0, np.float32), address)
    driver.free(address)


def test_streams_and_events_exist(driver: EmulatorDriver) -> None:
    stream = driver.create_stream()
    start, end = driver.record_event(stream), driver.record_event(stream)
    assert driver.elapsed_ms(start, end) >= 0
    driver.destroy_event(start)
    driver.destroy_event(end)
    driver.destroy_stream(stream)


def test_what_cannot_be_loaded_is_refused(driver: EmulatorDriver) -> None:
    with pytest.raises(CompilerBug, match="no kernel `half`"):
        driver.load(_PTX.encode(), "half", 0)
    with pytest.raises(CompilerBug, match="add\\.u33"):
        driver.load(_PTX.replace("add.u32", "add.u33").encode(), "double", 0)
    with pytest.raises(KernelError, match=r"expected a launch in clusters of \(1, 1, 1\)"):
        driver.load(_PTX.encode(), "double", 0, 0, LaunchOptions(cluster=(2, 1, 1)))
    with pytest.raises(KernelError, match="expected a GPU to emulate"):
        EmulatorDriver("host")


def test_each_vendor_has_its_text() -> None:
    assert (text_of("sm_90a"), text_of("gfx1201")) == ("ptx", "amdgcn")
