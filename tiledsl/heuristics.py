"""`@tile.heuristics`: constexprs that are computed from a call's other arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiledsl.call import Call
from tiledsl.compile import CompiledKernel
from tiledsl.wrapper import Launchable, Wrapper, by_name

Rule = Callable[[dict[str, Any]], Any]
"""Takes the arguments by name, and gives one more."""


class Heuristics(Wrapper):
    """A kernel some of whose arguments are computed at each call; see `heuristics`."""

    def __init__(self, fn: Launchable, values: Mapping[str, Rule]) -> None:
        super().__init__(fn, "tile.heuristics")
        self.check_parameters("tile.heuristics", values)
        self.values = dict(values)

    def __repr__(self) -> str:
        return f"<tile.heuristics of {self.fn!r}>"

    def run(
        self, grid: object, args: Sequence[object], kwargs: Mapping[str, Any]
    ) -> CompiledKernel | None:
        """Launch with the computed arguments."""
        return self.fn[grid](*args, **self._completed(args, kwargs))

    def prepare(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> Call:
        """Decide all of a call but the grid."""
        return self.fn.prepare(args, self._completed(args, kwargs))

    def _completed(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        self.check_free("tile.heuristics", self.values, args, kwargs)
        known = by_name(self.parameters, args, kwargs)
        computed: dict[str, Any] = {}
        for name, rule in self.values.items():
            computed[name] = known[name] = rule(dict(known))
        return {**kwargs, **computed}


def heuristics(values: Mapping[str, Rule]) -> Callable[[Launchable], Heuristics]:
    """Compute some of a kernel's constexprs from its other arguments, at each call.

        @tile.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
        @tile.jit
        def kernel(x, n, BLOCK: tile.constexpr, EVEN: tile.constexpr): ...

    Below `@tile.autotune` the arguments include those of the configuration.

    Args:
        values: Of each parameter, a function from the arguments by name (defaults, options and the
            parameters before it here included) to its value.

    Raises:
        KernelError: What is decorated is no kernel, or it has no such parameter.
    """
    return lambda fn: Heuristics(fn, values)
