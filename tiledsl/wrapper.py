"""What stands around a kernel and is launched like it: the common part of tuning and heuristics."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tiledsl.call import Call
from tiledsl.compile import CompiledKernel
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.jit import JITFunction, describe, pickled_name
from tiledsl.parameters import Parameter


class Wrapper(ABC):
    """A kernel with something decided before each launch; launched as `wrapper[grid](...)`.

    Attributes:
        fn: The kernel, or another wrapper of it.
        name: The kernel's name.
        parameters: The kernel's parameters.
    """

    def __init__(self, fn: Launchable, by: str) -> None:
        if not isinstance(fn, JITFunction | Wrapper):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KernelError(
                f"{by}: expected a kernel, found {describe(fn)}",
                hint=f"put @{by} above @tile.jit",
            )
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name: str = fn.name
        self.parameters = fn.parameters
        self._names = [parameter.name for parameter in fn.parameters]

    @abstractmethod
    def run(
        self, grid: object, args: Sequence[object], kwargs: Mapping[str, Any]
    ) -> CompiledKernel | None:
        """Launch; returns the compiled kernel, or None where the grid is empty."""

    @abstractmethod
    def prepare(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> Call:
        """Decide all of a call but the grid; see `JITFunction.prepare`."""

    def __getitem__(self, grid: object) -> Callable[..., CompiledKernel | None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: object, *args: object, **kwargs: Any) -> CompiledKernel | None:
        return self.run(grid, args, kwargs)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Reject a call without a grid."""
        raise KernelError(
            f"expected `{self.name}` to be launched with a grid, found it called",
            hint=f"launch {self.name}[grid](...); inside a kernel, call {self.name}.fn(...)",
        )

    def __reduce__(self) -> str:
        return pickled_name(self, kernel_of(self).fn.__qualname__)

    def __copy__(self) -> Wrapper:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Wrapper:
        return self

    def check_parameters(self, by: str, names: Iterable[str]) -> None:
        """Raise unless the kernel has these parameters."""
        for name in names:
            if name not in self._names:
                raise KernelError(
                    f"{by}: kernel `{self.name}` has no parameter `{name}`",
                    hint=f"parameters: {', '.join(self._names)}",
                )

    def check_free(
        self, by: str, names: Iterable[str], args: Sequence[object], kwargs: Mapping[str, Any]
    ) -> None:
        """Raise if a call gives what is decided here."""
        given = {*self._names[: len(args)], *kwargs}
        for name in names:
            if name in given:
                raise KernelError(
                    f"kernel `{self.name}`: argument `{name}` is decided by {by}, found it given"
                )


Launchable = JITFunction | Wrapper


def by_name(
    parameters: Sequence[Parameter], args: Sequence[object], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that a call has so far by name, defaults included."""
    empty = inspect.Parameter.empty
    defaults = {p.name: p.default for p in parameters if p.default is not empty}
    names = [parameter.name for parameter in parameters]
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def kernel_of(launchable: Launchable) -> JITFunction:
    """Return the kernel under all wrappers."""
    while isinstance(launchable, Wrapper):
        launchable = launchable.fn
    return launchable
