"""Run a compiled kernel where its arguments are.

A *place* is "host", "cuda:0", "hip:1" or "emulate:sm_80". Arrays that live on a device decide the
place; arrays in host memory run on the current device (`tiledsl.device`), copied there and back if
that is a GPU or one that is emulated.
Device launches go to the calling library's current stream and do not wait.

Contract: nothing is launched unless the grid and every argument are right; a fault names the
parameter. A grid with a zero launches nothing and is no error.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, cast

import numpy as np

from tiledsl.arrays import HOST, HostMemory, host_memory, numpy_dtype
from tiledsl.compile import CompiledKernel
from tiledsl.device import EMULATE
from tiledsl.device import current as current_place
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.arguments import ArgumentLayout
from tiledsl.targets.driver import DeviceInfo, Driver, Grid, Kernel, LaunchOptions
from tiledsl.targets.target import Artifact, Target, find, target
from tiledsl.transforms.map_spec import MapSpec

_TARGETS = {"host": "host", "cuda": "nvptx", "hip": "amdgpu"}


@cache
def _driver(vendor: str) -> Driver:
    if vendor.startswith(EMULATE):
        from tiledsl.targets.gpu.emulator.driver import EmulatorDriver

        return EmulatorDriver(vendor.removeprefix(f"{EMULATE}:"))
    return target(_TARGETS[vendor]).driver()


def driver_of(place: str) -> Driver:
    """Return the driver of the device at `place`."""
    return _driver(split_place(place)[0])


def split_place(place: str) -> tuple[str, int]:
    """Return the vendor ("host", "cuda", "hip" or the whole "emulate:sm_80") and the ordinal."""
    vendor, _, index = place.partition(":")
    return (place, 0) if vendor == EMULATE else (vendor, int(index or 0))


@cache
def device_info(place: str) -> DeviceInfo:
    """Return what the driver says of the device at `place`.

    Raises:
        KernelError: There is no such device.
    """
    vendor, index = split_place(place)
    found = _driver(vendor).devices()
    if index >= len(found):
        raise KernelError(f"expected a device among {len(found)} of kind {vendor}, found {place!r}")
    return found[index]


def chip_of(place: str) -> str:
    """Return the chip to compile for at `place`."""
    if place.startswith(EMULATE):
        return place.partition(":")[2]
    return HOST if place == HOST else device_info(place).chip


def choose_place(names: Sequence[str], places: Sequence[str | None]) -> str:
    """Return where a launch with these arguments runs.

    Args:
        names: The parameters' names.
        places: Where each argument lives; None for a scalar.

    Raises:
        KernelError: Arrays live on different devices; names the first parameter that differs.
    """
    owner, first = "", None
    for name, place in zip(names, places, strict=True):
        if place is None or place == first:
            continue
        if first is not None:
            raise KernelError(
                f"argument `{name}`: expected an array on {first} like `{owner}`, "
                f"found one on {place}"
            )
        owner, first = name, place
    return current_place() if first is None or first == HOST else first


def check_grid(grid: object, limits: Sequence[int]) -> Grid | None:
    """Return the grid as three integers, or None where it has no program.

    Raises:
        KernelError: It is no tuple of one to three integers, or an axis is out of range.
    """
    if type(grid) is tuple and 0 < len(cast("tuple[Any, ...]", grid)) < 4:
        # What nearly all grids are, in a quarter of the time.
        x, y, z = (*cast("tuple[Any, ...]", grid), 1, 1)[:3]
        if (
            type(x) is type(y) is type(z) is int
            and 0 < x <= limits[0]
            and 0 < y <= limits[1]
            and 0 < z <= limits[2]
        ):
            return x, y, z
    sizes: tuple[Any, ...]
    sizes = tuple(cast("Sequence[Any]", grid)) if isinstance(grid, tuple | list) else (grid,)
    if not 1 <= len(sizes) <= 3:
        raise KernelError(f"grid: expected one to three integers, found {grid!r}")
    whole: list[int] = []
    for axis, size in enumerate(sizes):
        try:
            count = operator.index(size)
        except TypeError:
            raise KernelError(f"grid: expected integers, found {size!r} on axis {axis}") from None
        if not 0 <= count <= limits[axis]:
            raise KernelError(
                f"grid: expected 0 to {limits[axis]} programs on axis {axis}, found {count}"
            )
        whole.append(count)
    if 0 in whole:
        return None
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def current_stream(place: str, arrays: Sequence[object]) -> int:
    """Return the current stream, at `place`, of the library that the arguments come from."""
    vendor, index = split_place(place)
    if vendor == HOST or vendor.startswith(EMULATE):
        return 0
    from_cupy = any(type(array).__module__.partition(".")[0] == "cupy" for array in arrays)
    if from_cupy:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch_stream()(index)
    return 0


@cache
def torch_stream() -> Callable[[int], int]:
    """Return the function that gives torch's current stream on a device, by the device's number."""
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return cast("Callable[[int], int]", raw)
    return lambda index: int(torch.cuda.current_stream(index).cuda_stream)


OVERLAP = "TILEDSL_OVERLAP_LAUNCHES"
"""The variable that, set to 0, keeps launches from beginning before the one ahead has ended, which
kernels otherwise wait for by themselves."""


class Loaded:
    """A compiled kernel, loaded on one device and ready to launch."""

    def __init__(self, compiled: CompiledKernel, place: str) -> None:
        vendor, index = split_place(place)
        artifact = compiled.artifact
        self.compiled = compiled
        self.place = place
        kinds = [argument.kind for argument in compiled.request.signature.values()]
        maps = artifact.tensor_maps
        self._maps = TensorMaps(maps, place) if maps else None
        self.arguments = [
            (name, numpy_dtype(argument.dtype).itemsize)
            for name, argument in compiled.request.signature.items()
        ]
        """Each argument's name and the bytes of an element, for what an emulator finds."""
        owner, chip = find(compiled.request.chip)
        x, y, z = grid_limits(owner, chip)
        self._cluster = artifact.cluster
        self.limits: Sequence[int] = (x // self._cluster, y, z)
        self._threads = artifact.threads
        words = compiled.request.options.ptxas_options if vendor == "cuda" else ""
        overlaps = artifact.overlaps and os.environ.get(OVERLAP) != "0"
        cluster = (self._cluster, 1, 1)
        options = LaunchOptions(cluster=cluster, programmatic=overlaps, compiler=words)
        self._kernel: Kernel = _driver(vendor).load(
            _binary(artifact, place), artifact.entry, artifact.shared_bytes, index, options
        )
        base: int = getattr(self._kernel, "argument_base", 0) if maps else 0
        self.layout = ArgumentLayout((*kinds, *("tensormap" for _ in maps)), base)

    def launch(self, grid: Grid, values: Sequence[int | float], stream: int) -> None:
        """Queue one run on a stream."""
        maps = [] if self._maps is None else self._maps.encoded(values)
        packed = self.layout.pack([*values, *maps] if maps else values)
        if self._cluster > 1:
            grid = (grid[0] * self._cluster, *grid[1:])
        self._kernel.launch(grid, self._threads, packed, stream)


class TensorMaps:
    """Makes the descriptions of tensors that a kernel takes behind its arguments, and keeps them.

    A tensor without elements has no description: in its place goes one of a single zero, so that
    everything in it still reads as zero. What is written goes to another place, which nobody reads.
    """

    _KEPT = 256

    def __init__(self, specs: Sequence[MapSpec], place: str) -> None:
        self._specs = specs
        self._place = place
        positions = {
            n for one in specs for kind, n in (*one.sizes, *one.strides) if kind != "constant"
        }
        self._read = sorted(positions | {one.base for one in specs})
        self._known: dict[tuple[object, ...], list[bytes]] = {}

    def encoded(self, values: Sequence[int | float]) -> list[bytes]:
        """Return 128 bytes for each description, given the values of the author's arguments."""
        key = tuple(values[position] for position in self._read)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._KEPT:
                self._known.clear()
            found = self._known[key] = [self._encode(spec, values) for spec in self._specs]
        return found

    def _encode(self, spec: MapSpec, values: Sequence[int | float]) -> bytes:
        from tiledsl.targets.nvptx.tensor_map import TensorMap, element_bytes

        def number(one: tuple[str, int]) -> int:
            return one[1] if one[0] == "constant" else int(values[one[1]])

        vendor, index = split_place(self._place)
        driver: Any = _driver(vendor)
        address, sizes = int(values[spec.base]), tuple(map(number, spec.sizes))
        size = element_bytes(spec.element)
        strides = tuple(number(one) * size for one in spec.strides)
        if min(sizes) <= 0:
            address = _no_elements(self._place, spec.written)
            sizes, strides = (1,) * len(sizes), (16,) * len(strides)
        described = TensorMap(spec.element, address, sizes, strides, spec.box, spec.swizzle)
        return driver.encode_tensor_map(described, index)


@cache
def _no_elements(place: str, written: bool) -> int:
    """Return the address on a device of what stands for a tensor without elements: some zeros.

    Args:
        place: The device.
        written: Whether a kernel may write there; what is read stays zero.
    """
    del written  # two places
    vendor, index = split_place(place)
    address = _driver(vendor).allocate(16, index)
    _driver(vendor).copy_in(address, np.zeros(16, np.uint8), index)
    return address


def _binary(artifact: Artifact, place: str) -> bytes:
    """Return what the driver at `place` loads; an emulator takes the assembly text."""
    if not place.startswith(EMULATE):
        return artifact.binary
    from tiledsl.targets.gpu.emulator.driver import text_of

    text = artifact.texts[text_of(chip_of(place))]
    return text.encode() if isinstance(text, str) else text


def grid_limits(owner: Target, chip: str) -> Sequence[int]:
    """Return the most programs along each axis on `chip`."""
    limits: Callable[[str], Sequence[int]] | None = getattr(owner, "grid_limits", None)
    return (2**31 - 1,) * 3 if limits is None else limits(chip)


@contextmanager
def on_device(
    place: str,
    values: Sequence[int | float],
    arrays: Mapping[int, object],
    arguments: Sequence[tuple[str, int]] = (),
) -> Generator[list[int | float]]:
    """Copy host arrays to the device at `place`, give the values to pass, copy the arrays back.

    Arrays that share memory share it on the device too.

    Args:
        place: A GPU, or an emulated one.
        values: What would be passed on the host.
        arrays: Those of them that are arrays in host memory, by position.
        arguments: Each argument's name and bytes an element (`Loaded.arguments`).
    """
    vendor, index = split_place(place)
    driver = _driver(vendor)
    memories = {position: host_memory(array) for position, array in arrays.items()}
    copies = _Copies(driver, index, list(memories.values()))
    try:
        passed = list(values)
        for position in arrays:
            passed[position] = copies.translate(int(passed[position]))
        with _naming(copies, memories, arguments) if vendor.startswith(EMULATE) else nullcontext():
            yield passed
        copies.copy_back()
    finally:
        copies.free()


@contextmanager
def _naming(
    copies: _Copies, memories: Mapping[int, HostMemory], arguments: Sequence[tuple[str, int]]
) -> Generator[None]:
    """Tell the emulator what the arrays of a launch are called, and how far they go."""
    from tiledsl.targets.gpu.emulator import settings
    from tiledsl.targets.gpu.emulator.memory import Named

    named: list[Named] = []
    for position, memory in memories.items():
        name, item_bytes = arguments[position]
        low = copies.translate(memory.low)
        named.append(Named(name, low, low + memory.high - memory.low, item_bytes))
    with settings.use(names=tuple(named)):
        yield


class _Copies:
    """Device copies of stretches of host memory; what overlaps is one stretch."""

    def __init__(self, driver: Driver, index: int, memories: Sequence[HostMemory]) -> None:
        self._driver = driver
        self._index = index
        self._stretches: list[tuple[HostMemory, int]] = []
        for memory in _merge(memories):
            address = driver.allocate(memory.high - memory.low, index)
            self._stretches.append((memory, address))
            driver.copy_in(address, _bytes_at(memory), index)

    def translate(self, address: int) -> int:
        """Return where the byte at a host address went.

        An empty array may begin at the end of a stretch; where another stretch begins there too,
        the address is that one's.
        """
        for memory, base in reversed(self._stretches):
            if memory.low <= address <= memory.high:
                return base + address - memory.low
        return 0

    def copy_back(self) -> None:
        """Wait for the device, then copy every writable stretch back."""
        self._driver.synchronize(self._index)
        for memory, base in self._stretches:
            if memory.writable:
                self._driver.copy_out(_bytes_at(memory), base, self._index)

    def free(self) -> None:
        """Give the device memory back."""
        for _, base in self._stretches:
            self._driver.free(base, self._index)


def _merge(memories: Sequence[HostMemory]) -> list[HostMemory]:
    merged: list[HostMemory] = []
    for memory in sorted(memories):
        if merged and memory.low < merged[-1].high:
            last = merged.pop()
            high = max(last.high, memory.high)
            memory = HostMemory(last.low, high, last.writable or memory.writable)
        merged.append(memory)
    return merged


def _bytes_at(memory: HostMemory) -> np.ndarray[Any, np.dtype[np.uint8]]:
    import ctypes

    size = memory.high - memory.low
    if size == 0:
        return np.empty(0, np.uint8)
    view: Any = (ctypes.c_uint8 * size).from_address(memory.low)
    return np.frombuffer(view, np.uint8)
