"""Find the fastest configuration of a kernel for one call: prune, prepare, time.

A `Trial` is one tuning: a call whose arguments are known but for those that configurations give. It
leaves no trace in the arrays: what any configuration writes is kept aside, put back before each
configuration is timed, and put back in the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from tiledsl import contents
from tiledsl.arrays import is_array
from tiledsl.call import Call
from tiledsl.config import Config
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.timing import Budget, milliseconds
from tiledsl.tuples import is_compound, items_of
from tiledsl.wrapper import Launchable, by_name


@dataclass(frozen=True)
class Pruning:
    """Which configurations are worth trying; see `tiledsl.autotune.autotune`."""

    early_config_prune: Callable[..., Sequence[Config]] | None = None
    perf_model: Callable[..., float] | None = None
    top_k: float = 1.0


@dataclass(frozen=True)
class Hooks:
    """What is done around launches; see `tiledsl.autotune.autotune`."""

    reset_to_zero: Sequence[str] = ()
    restore_value: Sequence[str] = ()
    pre_hook: Callable[..., object] | None = None
    post_hook: Callable[..., object] | None = None

    def before(self, config: Config, named: dict[str, Any], timed: bool) -> None:
        """Do what is to be done before each launch of a configuration.

        Args:
            config: The configuration.
            named: All arguments by name.
            timed: Whether the launch is for timing alone.
        """
        if config.pre_hook is not None:
            config.pre_hook(named)
        if self.pre_hook is not None:
            self.pre_hook(named, reset_only=not timed)
            return
        for name in self.reset_to_zero:
            for array in arrays_at(named, name):
                contents.zero(array)


@dataclass(frozen=True)
class Method:
    """How configurations are compared.

    Attributes:
        pruning: Which are tried.
        hooks: What is done around launches.
        budget: How long each is timed.
        do_bench: The caller's own function that times, if any.
    """

    pruning: Pruning
    hooks: Hooks
    budget: Budget
    do_bench: Callable[..., Any] | None


class Trial:
    """One tuning, for one call.

    Args:
        fn: The kernel.
        method: How configurations are compared.
        args: The call's positional arguments.
        kwargs: Its keyword arguments.
    """

    def __init__(
        self,
        fn: Launchable,
        method: Method,
        args: Sequence[object],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._fn = fn
        self._method = method
        self._args = args
        self._kwargs = kwargs

    def _named(self, config: Config) -> dict[str, Any]:
        given = {**self._kwargs, **config.all_kwargs()}
        return by_name(self._fn.parameters, self._args, given)

    def pruned(self, configs: Sequence[Config]) -> Sequence[Config]:
        """Return the configurations that are worth trying.

        Raises:
            KernelError: None is.
        """
        pruning, left = self._method.pruning, list(configs)
        named = by_name(self._fn.parameters, self._args, self._kwargs)
        if pruning.early_config_prune is not None:
            left = list(pruning.early_config_prune(list(left), dict(named), **self._kwargs))
            if not left:
                raise KernelError(
                    f"kernel `{self._fn.name}`: expected a configuration to be left by "
                    "early_config_prune, found none"
                )
        model, most = pruning.perf_model, pruning.top_k
        count = max(1, int(len(configs) * most) if isinstance(most, float) else most)
        if model is not None and len(left) > count:
            left = sorted(left, key=lambda c: model(**{**named, **c.all_kwargs()}))[:count]
        return left

    def prepared(self, configs: Sequence[Config]) -> list[tuple[Config, Call]]:
        """Compile and load each configuration; leave out those that cannot be.

        Raises:
            KernelError: None is left.
        """
        calls: list[tuple[Config, Call]] = []
        failures: list[tuple[Config, KernelError]] = []
        for config in configs:
            if config.pre_hook is not None:  # it may change arguments that the kernel is made for
                config.pre_hook(self._named(config))
            try:
                given = {**self._kwargs, **config.all_kwargs()}
                calls.append((config, self._fn.prepare(self._args, given)))
            except KernelError as error:
                failures.append((config, error))
        if not calls:
            raise self._none_left(failures)
        return calls

    def _none_left(self, failures: Sequence[tuple[Config, KernelError]]) -> KernelError:
        """Return the error that no configuration works."""
        error = failures[0][1]
        if len({failure.message for _, failure in failures}) == 1:
            return error  # the configurations have nothing to do with it
        lines = [f"\n  {config}: {failure.message}" for config, failure in failures]
        return KernelError(
            f"kernel `{self._fn.name}`: expected a configuration that fits, found none of "
            f"{len(failures)}{''.join(lines)}",
            error.span,
            error.hint,
            error.notes,
        )

    def timings(self, calls: Sequence[tuple[Config, Call]], grid: object) -> dict[Config, float]:
        """Return the milliseconds of each configuration; none where the grid is empty.

        Raises:
            KernelError: A launch fails; those that the device has no resources for are left out,
                unless that leaves none.
        """
        found: dict[Config, float] = {}
        failures: list[tuple[Config, KernelError]] = []
        written = [call.arrays[i] for _, call in calls for i in call.written]
        with _kept(written) as restore:
            for config, call in calls:
                restore()
                try:
                    taken = self._time(config, call, with_options(grid, config))
                except KernelError as error:
                    if not _is_too_large(error):
                        raise
                    failures.append((config, error))
                    continue
                if taken is not None:
                    found[config] = taken
        if failures and not found:
            raise self._none_left(failures)
        return found

    def _time(self, config: Config, call: Call, grid: object) -> float | None:
        hooks, named = self._method.hooks, self._named(config)
        with _kept([a for name in hooks.restore_value for a in arrays_at(named, name)]) as restore:

            def before() -> None:
                restore()
                hooks.before(config, named, timed=True)

            if self._method.do_bench is None:
                taken = milliseconds(call, grid, before, self._method.budget)
            else:
                taken = _time_by(self._method.do_bench, call, grid, before)
        if hooks.post_hook is not None:
            hooks.post_hook(named, exception=None)
        return taken


def _time_by(
    do_bench: Callable[..., Any], call: Call, grid: object, before: Callable[[], None]
) -> float | None:
    """Time a launch by the caller's own function, of Triton's form."""
    with call.ready(grid) as run:
        if run is None:
            return None

        def once() -> None:
            before()
            run()

        found = do_bench(once, quantiles=(0.5, 0.2, 0.8))
    times = cast("Sequence[float]", found if isinstance(found, list | tuple) else [found])
    return float(times[0])


def with_options(grid: object, config: Config) -> object:
    """Return a grid whose function, if it is one, sees a configuration's options too."""
    if not callable(grid):
        return grid

    def sized(named: dict[str, Any]) -> object:
        return grid({**named, **config.all_kwargs()})

    return sized


def arrays_at(named: Mapping[str, Any], name: str) -> list[object]:
    """Return the arrays that a name means: an argument, an item of one, or all its items.

    Raises:
        KernelError: It is no array.
    """
    parameter, *path = name.split(".")
    value: object = named.get(parameter)
    for step in path:
        value = items_of(value)[int(step)] if step.isdecimal() else getattr(value, step)
    if is_compound(value):
        return [item for item in items_of(value) if is_array(item)]
    if value is not None and not is_array(value):
        raise KernelError(f"tuning: expected an array as `{name}`, found {type(value).__name__}")
    return [] if value is None else [value]


@contextmanager
def _kept(arrays: Sequence[object]) -> Generator[Callable[[], None]]:
    """Keep arrays aside; give a function that puts them back, which is done in the end too."""
    kept = [contents.keep(array) for array in {id(a): a for a in arrays}.values()]

    def restore() -> None:
        for put_back in kept:
            put_back()

    try:
        yield restore
    finally:
        restore()


_TOO_LARGE = re.compile(r"OUT_?OF_?RESOURCES|at most \d+ threads", re.IGNORECASE)


def _is_too_large(error: KernelError) -> bool:
    """Return whether a launch was refused for what the kernel takes of the device."""
    return _TOO_LARGE.search(error.message) is not None
