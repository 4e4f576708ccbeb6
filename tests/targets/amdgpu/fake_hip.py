"""HIP without a GPU (`fake_hip.c`) whose launches an emulator runs.

The library has two devices, a CDNA 3 and an RDNA 4. Device memory is the emulators' memory, so that
they check every access; a launch comes with nothing but what HIP gets: the code object, the entry,
grid and workgroup, and the bytes of the arguments. The text that the emulator reads is looked up by
the code object that was assembled with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.targets.fake_library import fake_library
from tiledsl import launch
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.amdgpu import assemble, driver
from tiledsl.targets.amdgpu.code_object import kernels
from tiledsl.targets.gpu.emulator.driver import EmulatorDriver

_SIZE, _INT, _TEXT = ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
LAUNCHED = ctypes.CFUNCTYPE(
    _INT, _TEXT, ctypes.POINTER(ctypes.c_uint), _SIZE, ctypes.c_void_p, _SIZE, _INT,
    ctypes.c_void_p, _SIZE,
)  # fmt: skip
"""A launch: entry; grid, workgroup and shared memory; stream; arguments; device; code object."""
_TAKE = ctypes.CFUNCTYPE(_SIZE, _SIZE, _INT)
_GIVE = ctypes.CFUNCTYPE(None, _SIZE, _INT)

CHIPS = ("gfx942", "gfx1201")
"""By device."""
INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700


class EmulatedHip:
    """The library with emulators behind it; callbacks live as long as this object.

    Attributes:
        library: The loaded library, to steer it by its fake_* functions.
        launches: Entry, grid, workgroup and device of each launch that was run.
        faults: What the emulators found wrong with kernels.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []
        self.faults: list[str] = []
        self._emulators = [EmulatorDriver(chip) for chip in CHIPS]
        self._texts: dict[bytes, str] = {}
        self._callbacks = LAUNCHED(self._launched), _TAKE(self._take), _GIVE(self._give)
        library.fake_on_launch(self._callbacks[0])
        library.fake_memory(*self._callbacks[1:])
        for number, chip in enumerate(CHIPS):
            library.fake_chip(number, chip.encode())

    def remember(self, artifact: Any) -> Any:
        """Keep the text of what was assembled."""
        self._texts[artifact.binary] = artifact.texts["amdgcn"]
        return artifact

    def _take(self, size: int, device: int) -> int:
        return self._emulators[device].memory.allocate(size, written=True)

    def _give(self, address: int, device: int) -> None:
        self._emulators[device].memory.free(address)

    def _launched(
        self,
        entry: bytes,
        shape: Any,
        stream: int,
        data: int,
        size: int,
        device: int,
        image: int,
        image_size: int,
    ) -> int:
        """Run a launch; returns HIP's status."""
        del stream
        name, code = entry.decode(), ctypes.string_at(image, image_size)
        grid, block, shared = tuple(shape[:3]), tuple(shape[3:6]), int(shape[6])
        known = kernels(code)[name]
        visible = [one for one in known.arguments if not one.hidden]
        expected = visible[-1].offset + visible[-1].size if visible else 0
        if size != expected or block[0] > known.max_workgroup or block[1:] != (1, 1):
            return INVALID_VALUE
        self.launches.append((name, grid, block, device))
        try:
            kernel = self._emulators[device].load(self._texts[code].encode(), name, shared)
            kernel.launch(grid, block[0], ctypes.string_at(data, size))
        except (KernelError, CompilerBug) as error:  # ctypes would print it and go on
            self.faults.append(error.message)
            return ILLEGAL_ADDRESS
        return 0


@contextmanager
def emulated_hip(folder: Path) -> Generator[EmulatedHip]:
    """Make "hip:0" and "hip:1" of this process the fake library's devices."""
    path, library = fake_library(Path(__file__).with_name("fake_hip.c"), folder)
    fake = EmulatedHip(library)
    assembled: Any = assemble.assemble

    def remembered(*arguments: Any) -> Any:
        return fake.remember(assembled(*arguments))

    caches: tuple[Any, ...] = (driver.driver, launch._driver, launch.device_info)  # pyright: ignore[reportPrivateUsage]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEDSL_LIBAMDHIP64", path)
        patch.setenv("TILEDSL_CACHE", "0")
        patch.setenv("TILEDSL_EMULATE_PROCESSES", "1")  # no fork below a library's call
        patch.setattr(assemble, "assemble", remembered)
        for cache in caches:
            cache.cache_clear()
        try:
            yield fake
        finally:
            for cache in caches:
                cache.cache_clear()
    assert library.fake_live_blocks() == 0, "device memory was left"
    assert library.fake_live_marks() == 0, "a stream or an event was left"
