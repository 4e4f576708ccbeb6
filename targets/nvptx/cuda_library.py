"""NVIDIA's driver from Python: the package cuda-bindings, imported and checked on first use.

cuda-bindings declares every function, structure and number of the driver's interface; it finds the
driver's library by itself and needs no CUDA toolkit. It takes a fifth of a second to import, so
only a driver that is asked for a device does. What is ours stands here: that every status is
checked, and what users are told.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

from tiledsl.dialects.diagnostics import KernelError

_OLDEST = 12000
"""CUDA 12.0: cuLaunchKernelEx and tensor maps are there."""

UNANSWERED = (RuntimeError, ValueError, KeyError)
"""How cuda-bindings says that the driver has no such function, and that it does not know a status:
what happens if one of the two is much older than the other."""

_HINTS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free arrays, or use smaller ones",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the code is for another chip than this device's",
    "CUDA_ERROR_INVALID_PTX": "this driver is too old for the PTX: update it, or install "
    "nvidia-cuda-nvcc",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "this driver is too old for the PTX: update it, or "
    "install nvidia-cuda-nvcc",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel accessed memory outside its arrays; an emulator finds "
    "the access",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "a kernel ran an instruction that this device does not have",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel's access was not aligned to its size; an emulator "
    "finds the access",
}


class CudaLibrary:
    """The driver's functions, each with its status checked."""

    @cached_property
    def api(self) -> Any:
        """The module `cuda.bindings.driver`, once the driver is known to be there.

        Raises:
            KernelError: The package or the driver is not here, or is too old.
        """
        try:
            api: Any = import_module("cuda.bindings.driver")
        except ImportError as error:
            raise KernelError(
                f"cuda-bindings, which calls the NVIDIA driver, cannot be imported: {error}",
                hint='pip install "cuda-bindings>=12.8"; there is none for macOS',
            ) from error
        try:
            _, version = api.cuDriverGetVersion()
        except RuntimeError as error:  # of any release: that it found no library
            raise KernelError(
                "the NVIDIA driver was not found",
                hint='install it where there is a GPU; "host" and "emulate:CHIP" need none',
            ) from error
        if version < _OLDEST:
            raise KernelError(
                f"the NVIDIA driver here is too old: it is of CUDA {_spelled(version)}, expected "
                f"{_spelled(_OLDEST)} or later"
            )
        return api

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what a function gives beside its status, None if nothing.

        Raises:
            KernelError: The status is not success, or as `UNANSWERED` says.
        """
        status, *given = self.answer(name, *arguments)
        if status:
            raise self.error(name, status)
        return given[0] if given else None

    def answer(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Return what a function gives, the status first, which is the caller's to check."""
        function = getattr(self.api, name)
        try:
            return function(*arguments)
        except UNANSWERED as error:
            raise self.unanswered(name, error) from error

    def device_attribute(self, name: str, device: Any) -> int:
        """Return what the driver says of a device; `name` lacks CU_DEVICE_ATTRIBUTE_."""
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self.call("cuDeviceGetAttribute", attribute, device)

    def function_attribute(self, name: str, function: Any) -> int:
        """Return what the driver says of a loaded function; `name` lacks CU_FUNC_ATTRIBUTE_."""
        attribute = getattr(self.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return self.call("cuFuncGetAttribute", attribute, function)

    def set_function_attribute(self, name: str, function: Any, value: int) -> None:
        """Set what `function_attribute` reads."""
        attribute = getattr(self.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        self.call("cuFuncSetAttribute", function, attribute, value)

    def unanswered(self, name: str, error: Exception) -> KernelError:
        """Return the error for an exception among `UNANSWERED` from function `name`."""
        package: Any = import_module("cuda.bindings")
        _, version = self.api.cuDriverGetVersion()
        return KernelError(
            f"{name} failed: {error}",
            hint=f"the driver is of CUDA {_spelled(version)}, cuda-bindings of "
            f"{package.__version__}: update the older of the two",
        )

    def error(self, name: str, status: Any, detail: str = "") -> KernelError:
        """Return the error for a CUresult that function `name` returned."""
        _, words = self.api.cuGetErrorString(status)
        told = f"{status.name} ({words.decode() if words else int(status)})"
        return KernelError(f"{name} failed: {told}{detail}", hint=_HINTS.get(status.name))


def _spelled(version: int) -> str:
    return "{}.{}".format(*split_version(version))


def split_version(version: int) -> tuple[int, int]:
    """Return a version as CUDA counts them, 12080, as (12, 8)."""
    return version // 1000, version % 1000 // 10
