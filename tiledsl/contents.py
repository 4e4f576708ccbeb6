"""What arrays hold: kept aside while a kernel is tuned, put back, or set to zero.

Contract: `keep(array)` returns a function that puts back, bit for bit, what the array holds now, as
often as it is called; gaps between the elements of a view count as part of it. torch's tensors are
copied on their own device and stream; other arrays by their bytes, through the driver where they
are on a device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from tiledsl import launch
from tiledsl.arrays import HOST, host_memory, is_torch_tensor, read
from tiledsl.dialects.diagnostics import KernelError

Restore = Callable[[], None]


def keep(array: object) -> Restore:
    """Return a function that puts back what `array` holds now."""
    if is_torch_tensor(type(array)):
        return _keep_tensor(array)
    argument = read(array)
    memory = host_memory(array)
    size = memory.high - memory.low
    place = None if argument is None else argument[2]
    if place is None or place == HOST:
        held = ctypes.string_at(memory.low, size)
        return lambda: _put_bytes(memory.low, held)
    return _keep_on_device(memory.low, size, place)


def _put_bytes(address: int, held: bytes) -> None:
    ctypes.memmove(address, held, len(held))


def _keep_on_device(address: int, size: int, place: str) -> Restore:
    driver, index = launch.driver_of(place), launch.split_place(place)[1]
    held = np.empty(size, np.uint8)
    driver.copy_out(held, address, index)

    def restore() -> None:
        driver.synchronize(index)
        driver.copy_in(address, held, index)

    return restore


def _keep_tensor(array: Any) -> Restore:
    tensor = array.detach()
    if tensor.numel():
        # Its whole stretch of memory: what a view holds twice could not be written.
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        length = 1 + sum((n - 1) * step for n, step in steps)
        tensor = tensor.as_strided((length,), (1,), tensor.storage_offset())
    held = tensor.clone()
    return lambda: tensor.copy_(held)


def zero(array: object) -> None:
    """Set all elements of `array` to zero.

    Raises:
        KernelError: It is of a library that has no function for that.
    """
    if is_torch_tensor(type(array)):
        cast("Any", array).detach().zero_()
    elif callable(fill := getattr(array, "fill", None)):  # NumPy, CuPy
        fill(0)
    elif (argument := read(array)) is not None and argument[2] == HOST:
        np.from_dlpack(cast("Any", array))[...] = 0
    else:
        raise KernelError(
            "expected an array of torch, NumPy or CuPy to set to zero, "
            f"found {type(array).__name__}"
        )
