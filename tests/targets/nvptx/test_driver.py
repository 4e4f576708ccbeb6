import ctypes
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.arguments import ArgumentLayout
from tiledsl.targets.driver import DeviceInfo, Driver, Grid, Kernel, LaunchOptions, Resources
from tiledsl.targets.nvptx.chips import chip
from tiledsl.targets.nvptx.cuda_library import CudaLibrary
from tiledsl.targets.nvptx.driver import CudaDriver, CudaKernel, driver
from tiledsl.targets.nvptx.ptxas import assemble, find_ptxas
from tiledsl.targets.nvptx.tensor_map import TensorMap

from .fake_driver import Fake, Launch

CUBIN = b"\x7fELF, as far as the fake driver looks"


def satisfies(driver: Driver, kernel: Kernel) -> None:
    """Check, when types are, that the classes satisfy the Protocols."""


def test_devices_are_described_with_the_chip_to_compile_for(fake: Fake):
    assert fake.driver.devices() == [
        DeviceInfo(0, "Fake GPU 0", "sm_90a", True, 80 << 30, 132, 232448),
        DeviceInfo(1, "Fake GPU 1", "sm_86", True, 40 << 30, 131, 101376),
    ]
    assert fake.driver.version() == (13, 0)


def test_a_launch_carries_grid_threads_stream_and_arguments(fake: Fake):
    kernel = fake.driver.load(CUBIN, "k", 100)
    satisfies(fake.driver, kernel)
    stream = fake.driver.create_stream()
    arguments = ArgumentLayout(("ptr", "i32", "f32")).pack((4096, -1, 1.5))
    kernel.launch((3, 4, 5), 128, arguments)
    kernel.launch((3, 4, 5), 128, b"")
    kernel.launch((3, 1, 1), 64, arguments, stream)
    assert fake.launches == [
        Launch("k", (3, 4, 5), (128, 1, 1), 100, 0, arguments, (1, 1, 1), 0),
        Launch("k", (3, 4, 5), (128, 1, 1), 100, 0, b"", (1, 1, 1), 0),
        Launch("k", (3, 1, 1), (64, 1, 1), 100, stream, arguments, (1, 1, 1), 0),
    ]
    fake.driver.destroy_stream(stream)


def test_arguments_longer_than_any_before_are_carried_too(fake: Fake):
    kernel = fake.driver.load(CUBIN, "k", 0)
    for size in (10, 4000, 30000, 20):
        kernel.launch((1, 1, 1), 32, bytes(size))
    assert [len(launch.arguments) for launch in fake.launches] == [10, 4000, 30000, 20]


def test_an_empty_grid_launches_nothing(fake: Fake):
    kernel = fake.driver.load(CUBIN, "k", 0)
    kernel.launch((4, 0, 1), 32, b"")
    assert fake.launches == []


def test_clusters_and_dependent_launches_reach_the_driver(fake: Fake):
    options = LaunchOptions(cluster=(4, 4, 1), programmatic=True)
    fake.driver.load(CUBIN, "k", 0, options=options).launch((16, 4, 1), 128, b"x")
    fake.driver.load(CUBIN, "k", 0, options=LaunchOptions(programmatic=True)).launch(
        (1, 1, 1), 128, b"x"
    )
    assert [(launch.cluster, launch.programmatic) for launch in fake.launches] == [
        ((4, 4, 1), 1),
        ((1, 1, 1), 1),
    ]


@pytest.mark.parametrize(
    ("grid", "threads", "message"),
    [
        ((1, 65536, 1), 32, "expected a grid of 1 to 65535 programs along y, found (1, 65536, 1)"),
        ((2**32 + 1, 1, 1), 32, "expected a grid of 1 to 2147483647 programs along x"),
        ((1, 1, -1), 32, "expected a grid of 1 to 65535 programs along z"),
        ((1, 1, 1), 2048, "expected 1 to 1024 threads, found 2048"),
    ],
)
def test_a_shape_beyond_every_device_is_refused(fake: Fake, grid: Grid, threads: int, message: str):
    kernel = fake.driver.load(CUBIN, "k", 0)
    with pytest.raises(KernelError) as error:
        kernel.launch(grid, threads, b"")
    assert str(error.value).startswith(message)
    assert fake.launches == []


def test_too_many_threads_for_the_registers_are_explained(fake: Fake):
    with pytest.raises(KernelError) as error:
        fake.driver.load(CUBIN, "k", 0).launch((1, 1, 1), 1024, b"")
    assert str(error.value) == (
        "cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE (words)\n"
        "  k, grid (1, 1, 1), 1024 threads; with 40 registers at most 512 threads"
    )


def test_a_fault_of_an_earlier_kernel_is_told_by_name_and_hint(fake: Fake):
    kernel = fake.driver.load(CUBIN, "k", 0)
    fake.fail("cuCtxSynchronize", 700)
    with pytest.raises(KernelError) as error:
        fake.driver.synchronize()
    assert str(error.value) == (
        "cuCtxSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS "
        "(an illegal memory access was encountered)\n"
        "  hint: a kernel accessed memory outside its arrays; an emulator finds the access"
    )
    fake.fail("cuLaunchKernelEx", 700)
    with pytest.raises(KernelError, match="ILLEGAL_ADDRESS"):
        kernel.launch((1, 1, 1), 32, b"")


def test_kernels_run_on_their_own_device_whatever_is_current(fake: Fake):
    first, second = fake.driver.load(CUBIN, "k", 0), fake.driver.load(CUBIN, "k", 0, device=1)
    context = ctypes.c_void_p()
    assert fake.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 11) == 0
    assert fake.library.cuCtxPushCurrent_v2(context) == 0
    first.launch((1, 1, 1), 32, b"1")
    second.launch((1, 1, 1), 32, b"2")
    current = ctypes.c_void_p()
    assert fake.library.cuCtxPopCurrent_v2(ctypes.byref(current)) == 0
    assert current.value == context.value
    assert [launch.arguments for launch in fake.launches] == [b"1", b"2"]


def test_shared_memory_beyond_48_kib_is_asked_for_and_beyond_the_device_refused(fake: Fake):
    fake.driver.load(CUBIN, "k", 200_000).launch((1, 1, 1), 32, b"")
    assert fake.launches[0].shared == 200_000
    with pytest.raises(KernelError) as error:
        fake.driver.load(CUBIN, "k", 100_500, device=1)
    assert str(error.value) == (
        "k needs 101524 bytes of shared memory, this device has 101376 for one program\n"
        "  hint: use smaller tiles or fewer num_stages"
    )


def test_a_cubins_resources_leave_spills_unknown_and_ptxs_tell_them(fake: Fake):
    assert fake.driver.load(CUBIN, "k", 0).resources == Resources(40, None, 8, 1024)
    ptx = b".version 8.0\n.entry k"
    assert fake.driver.load(ptx, "k", 0).resources == Resources(40, 16, 8, 1024)


def test_ptx_that_the_driver_rejects_is_told_with_its_log(fake: Fake):
    with pytest.raises(KernelError, match=r"(?s)INVALID_PTX.*line 4; error: bogus.*hint: .*nvcc"):
        fake.driver.load(b".version 8.0\nbogus", "k", 0)


def test_options_for_the_drivers_compiler_reach_it_with_text_alone(fake: Fake):
    options = LaunchOptions(compiler="-O1 --maxrregcount 64")
    fake.driver.load(b".version 8.0 // k", "k", 0, options=options)
    assert fake.library.fake_jit_option(7) == 1
    assert fake.library.fake_jit_option(0) == 64
    fake.driver.load(CUBIN, "k", 0, options=options)
    assert fake.library.fake_jit_option(7) == -1
    with pytest.raises(KernelError, match="ptxas_options: "):
        fake.driver.load(b".version 8.0 // k", "k", 0, options=LaunchOptions(compiler="--fmad"))


def test_a_missing_entry_is_told_by_name(fake: Fake):
    with pytest.raises(KernelError, match="cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND"):
        fake.driver.load(CUBIN, "other", 0)


@pytest.mark.parametrize("device", [0, 1])
def test_arrays_go_to_the_device_and_back(fake: Fake, device: int):
    source = np.arange(1000, dtype=np.float32).reshape(10, 100)
    address = fake.driver.allocate(source.nbytes, device)
    assert address % 256 == 0
    fake.driver.copy_in(address, source, device)
    back = np.zeros_like(source)
    fake.driver.copy_out(back, address, device)
    np.testing.assert_array_equal(back, source)
    fake.driver.free(address, device)
    assert fake.library.fake_live_blocks() == 0


def test_empty_arrays_are_allocated_and_copied_as_nothing(fake: Fake):
    empty = np.zeros((0, 5), np.float16)
    address = fake.driver.allocate(empty.nbytes)
    fake.driver.copy_in(address, empty)
    fake.driver.copy_out(empty, address)
    fake.driver.free(address)
    assert fake.library.fake_live_blocks() == 0


def test_an_array_with_gaps_is_a_compiler_bug(fake: Fake):
    with pytest.raises(CompilerBug, match="expected a C-contiguous array to copy"):
        fake.driver.copy_in(256, np.zeros((4, 4))[:, ::2])


def test_out_of_memory_is_a_kernel_error_with_a_hint(fake: Fake):
    with pytest.raises(KernelError, match=r"(?s)OUT_OF_MEMORY.*hint: free arrays"):
        fake.driver.allocate(1 << 40)


def test_a_capture_is_told_and_not_broken_by_loading(fake: Fake):
    stream = fake.driver.create_stream()
    assert not fake.driver.is_capturing(stream)
    fake.library.fake_capturing(1)
    assert fake.driver.is_capturing(stream)
    assert not fake.driver.is_capturing(0)
    fake.driver.load(CUBIN, "k", 0)
    assert fake.library.fake_capture_mode() == 0
    fake.library.fake_capturing(0)
    fake.driver.destroy_stream(stream)


def test_events_measure_the_devices_own_time(fake: Fake):
    kernel = fake.driver.load(CUBIN, "k", 0)
    start = fake.driver.record_event()
    kernel.launch((1, 1, 1), 32, b"")
    kernel.launch((1, 1, 1), 32, b"")
    end = fake.driver.record_event()
    assert fake.driver.elapsed_ms(start, end) == 0.5
    fake.driver.destroy_event(start)
    fake.driver.destroy_event(end)


def test_threads_share_one_kernel_without_mixing_arguments(fake: Fake):
    kernel = fake.driver.load(CUBIN, "k", 0)

    def launch(letter: bytes) -> None:
        for _ in range(200):
            kernel.launch((1, 1, 1), 32, letter * 40)

    threads = [threading.Thread(target=launch, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for made in fake.launches:
        assert made.arguments == made.arguments[:1] * 40
    assert Counter(made.arguments[0] for made in fake.launches) == dict.fromkeys(b"abc", 200)


def test_a_tensor_map_is_encoded_from_its_description(fake: Fake):
    described = TensorMap(
        "bf16", 1 << 20, (300, 200, 7), (608, 121600), (64, 100, 1), swizzle=128, l2_promotion=256
    )
    words = np.frombuffer(fake.driver.encode_tensor_map(described), np.uint64).tolist()
    assert words[:3] == [9, 3, 1 << 20]
    assert words[3:6] == [300 | 64 << 32, 200 | 100 << 32, 7 | 1 << 32]
    assert words[8:10] == [608, 121600]
    assert words[12:14] == [3, 3]


def test_a_device_that_is_not_there_is_a_kernel_error(fake: Fake):
    with pytest.raises(KernelError, match="expected a CUDA device below 2, found cuda:2"):
        fake.driver.allocate(4, device=2)


def test_a_machine_whose_driver_shows_no_device_is_a_kernel_error(fake: Fake):
    fake.library.fake_devices(0)
    with pytest.raises(KernelError, match="CUDA_ERROR_NO_DEVICE"):
        fake.driver.devices()


def test_a_driver_older_than_all_we_ask_of_it_is_a_kernel_error(fake: Fake):
    fake.library.fake_version(11080)
    with pytest.raises(KernelError) as error:
        CudaDriver(CudaLibrary()).devices()
    assert str(error.value) == (
        "the NVIDIA driver here is too old: it is of CUDA 11.8, expected 12.0 or later"
    )


def test_a_status_that_the_bindings_do_not_know_is_a_kernel_error(fake: Fake):
    kernel = fake.driver.load(CUBIN, "k", 0)
    fake.fail("cuCtxSynchronize", 98765)
    with pytest.raises(KernelError, match=r"cuCtxSynchronize failed: .*98765"):
        fake.driver.synchronize()
    fake.fail("cuModuleLoadDataEx", 98765)
    with pytest.raises(KernelError, match=r"cuModuleLoadDataEx failed: .*98765"):
        fake.driver.load(CUBIN, "k", 0)
    fake.fail("cuLaunchKernelEx", 98765)
    with pytest.raises(KernelError, match=r"cuLaunchKernelEx failed: .*98765"):
        kernel.launch((1, 1, 1), 32, b"")


def test_a_driver_without_a_function_that_the_bindings_call_is_a_kernel_error(
    monkeypatch: pytest.MonkeyPatch,
):
    class Older:
        @staticmethod
        def cuDriverGetVersion() -> tuple[int, int]:
            return 0, 12040

        @staticmethod
        def cuEventElapsedTime() -> tuple[int, float]:
            raise RuntimeError('Function "cuEventElapsedTime_v2" not found')

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", Older)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(__version__="13.5.0"))
    with pytest.raises(KernelError) as error:
        CudaLibrary().call("cuEventElapsedTime")
    assert str(error.value) == (
        'cuEventElapsedTime failed: Function "cuEventElapsedTime_v2" not found\n'
        "  hint: the driver is of CUDA 12.4, cuda-bindings of 13.5.0: update the older of the two"
    )


_LAZY = """
import sys
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.driver import driver
made = driver()
assert "cuda" not in sys.modules
for _ in range(2):
    try:
        made.devices()
    except KernelError as error:
        print(error)
"""


def test_a_machine_without_the_driver_is_told_when_a_device_is_asked_for(tmp_path: Path):
    (tmp_path / "libcuda.so.1").write_text("not a library, and found before any other")
    done = subprocess.run(
        [sys.executable, "-c", _LAZY],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = (
        "the NVIDIA driver was not found\n"
        '  hint: install it where there is a GPU; "host" and "emulate:CHIP" need none\n'
    )
    assert done.stdout == 2 * told


def test_a_missing_package_is_told_when_a_device_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(KernelError) as error:
        CudaDriver(CudaLibrary()).allocate(4)
    assert error.value.message.startswith(
        "cuda-bindings, which calls the NVIDIA driver, cannot be imported: "
    )
    assert error.value.hint == 'pip install "cuda-bindings>=12.8"; there is none for macOS'


PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p, .param .f32 by, .param .u32 n)
{
  .reg .b64 %rd<5>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .pred %q;
  ld.param.u64 %rd1, [p]; ld.param.f32 %f1, [by]; ld.param.u32 %r5, [n];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %q, %r4, %r5;
  @%q ret;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd4, %rd2, %rd3;
  ld.global.f32 %f2, [%rd4]; mul.f32 %f3, %f2, %f1; st.global.f32 [%rd4], %f3;
  ret;
}
"""


def scaled_on(real: Driver, kernel: Kernel, count: int = 1000) -> None:
    """Run `scale` on a device and check what it leaves."""
    source = np.arange(count, dtype=np.float32)
    address = real.allocate(source.nbytes)
    stream = real.create_stream()
    real.copy_in(address, source)
    arguments = ArgumentLayout(("ptr", "f32", "i32")).pack((address, 3.0, count))
    start = real.record_event(stream)
    kernel.launch((-(-count // 128), 1, 1), 128, arguments, stream)
    end = real.record_event(stream)
    assert 0 < real.elapsed_ms(start, end) < 1000
    back = np.empty_like(source)
    real.copy_out(back, address)
    np.testing.assert_array_equal(back, 3 * source)
    for event in (start, end):
        real.destroy_event(event)
    real.destroy_stream(stream)
    real.free(address)


@pytest.mark.gpu
def test_a_real_device_runs_ptx():
    kernel = driver().load(PTX.encode(), "scale", 60_000)
    assert kernel.resources.registers > 0
    assert not kernel.resources.spill_bytes  # None where the driver had compiled it before
    scaled_on(driver(), kernel)


@pytest.mark.gpu
@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_a_real_device_runs_machine_code():
    found = driver().devices()[0]
    if not found.native:
        pytest.skip(f"{found.name} has no chip of its own in the table")
    cubin = assemble(PTX, chip(found.chip)).cubin
    kernel = driver().load(cubin, "scale", 0, options=LaunchOptions(programmatic=True))
    assert isinstance(kernel, CudaKernel)
    scaled_on(driver(), kernel)


@pytest.mark.gpu
def test_a_real_device_takes_tensor_maps():
    real = driver()
    assert isinstance(real, CudaDriver)
    if not chip(real.devices()[0].chip).tma:
        pytest.skip("no TMA")
    address = real.allocate(1 << 20)
    encoded = real.encode_tensor_map(TensorMap("bf16", address, (512, 512), (1024,), (64, 64), 128))
    assert len(encoded) == 128
    assert any(encoded)
    real.free(address)
