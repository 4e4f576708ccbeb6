"""A call of a kernel with all decided but the grid: compiled, loaded, arguments read.

`JITFunction.prepare` makes one; a launch runs it once, tuning runs it many times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tiledsl import launch
from tiledsl.arrays import HOST, is_writable
from tiledsl.compile import CompiledKernel
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.driver import Grid


class Call(NamedTuple):
    """One call of a kernel.

    Attributes:
        kernel: The kernel's name.
        values: The argument of each parameter.
        loaded: The kernel, loaded where the call runs.
        packed: The value of each run-time argument, tuples' items one by one.
        places: Where each of them lives; None for a number.
        arrays: What each of them was read from.
    """

    kernel: str
    values: Mapping[str, object]
    loaded: launch.Loaded
    packed: Sequence[int | float]
    places: Sequence[str | None]
    arrays: Sequence[object]

    @property
    def names(self) -> list[str]:
        """The name of each run-time argument."""
        return list(self.loaded.compiled.request.signature)

    @property
    def written(self) -> Sequence[int]:
        """The positions of the arrays that the kernel may write through."""
        return self.loaded.compiled.written

    @property
    def copies(self) -> bool:
        """Whether arrays in host memory are copied to a device and back."""
        return self.loaded.place != HOST and HOST in self.places

    def run(self, grid: object) -> CompiledKernel | None:
        """Launch once; returns the compiled kernel, or None where the grid is empty.

        Raises:
            KernelError: The grid is wrong, or the kernel writes what is read-only.
        """
        sizes = self._sizes(grid)
        if sizes is None:
            return None
        if self.copies:
            with self._copied() as passed:
                self.loaded.launch(sizes, passed, 0)
        else:
            self.loaded.launch(sizes, self.packed, self.stream())
        return self.loaded.compiled

    @contextmanager
    def ready(self, grid: object) -> Generator[Callable[[], None] | None]:
        """Give a function that launches, None where the grid is empty; copies are made outside."""
        sizes, loaded = self._sizes(grid), self.loaded
        if sizes is None:
            yield None
        elif self.copies:
            with self._copied() as passed:
                yield lambda: loaded.launch(sizes, passed, 0)
        else:
            stream = self.stream()
            yield lambda: loaded.launch(sizes, self.packed, stream)

    def stream(self) -> int:
        """Return the stream that launches go to."""
        return 0 if self.copies else launch.current_stream(self.loaded.place, self.arrays)

    def _sizes(self, grid: object) -> Grid | None:
        if callable(grid):
            grid = grid(dict(self.values))
        sizes = launch.check_grid(grid, self.loaded.limits)
        if sizes is not None:
            self._check_written()
        return sizes

    def _check_written(self) -> None:
        for position in self.written:
            if not is_writable(self.arrays[position]):
                raise KernelError(
                    f"kernel `{self.kernel}`: argument `{self.names[position]}`: expected an array "
                    "that may be written, as the kernel stores through it, found a read-only one"
                )

    @contextmanager
    def _copied(self) -> Generator[Sequence[int | float]]:
        """Copy arrays in host memory to the device, give what to pass, copy them back."""
        host = {i: self.arrays[i] for i, where in enumerate(self.places) if where == HOST}
        loaded = self.loaded
        with launch.on_device(loaded.place, self.packed, host, loaded.arguments) as passed:
            yield passed
