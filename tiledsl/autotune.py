"""`@tile.autotune`: the fastest of some configurations, found at the first call of each kind.

A *kind* of call is its arguments' element types, its constexprs, the values of the parameters that
`key` names, and the device; what a configuration fits and how fast it is may depend on all of them.
Configurations that do not compile, or that the device cannot hold, are left out; if none is left,
the error lists why. The others are launched and timed (see `tuning` and `timing`).

Contract: a call computes the same whether it was tuned for or not. Tuning leaves no trace in the
arrays, whether the caller named them in `restore_value` or not, and hooks and `reset_to_zero` work
before every launch. Under a graph capture nothing can be timed: the first configuration that
compiles is taken, with a warning, and not remembered. An emulated device has no time of its own:
the first is taken there too.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiledsl import cache, launch
from tiledsl.arrays import HOST, is_array, read
from tiledsl.call import Call
from tiledsl.compile import OPTION_NAMES, CompiledKernel
from tiledsl.config import Config
from tiledsl.device import EMULATE
from tiledsl.device import current as current_place
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.parameters import constant_key
from tiledsl.timing import Budget
from tiledsl.tuning import Hooks, Method, Pruning, Trial, with_options
from tiledsl.tuples import is_compound, items_of
from tiledsl.wrapper import Launchable, Wrapper, by_name, kernel_of

_BY = "tile.autotune"


class Autotuner(Wrapper):
    """A kernel with configurations; see `autotune`.

    Attributes:
        configs: The configurations.
        cache: The one chosen for each kind of call.
        best_config: The one that the last call took.
        configs_timings: Milliseconds of each configuration that was timed, at the last tuning.
        bench_time: Seconds that the last tuning took.
    """

    def __init__(
        self,
        fn: Launchable,
        configs: Sequence[Config],
        key: Sequence[str],
        method: Method,
        cache_results: bool,
    ) -> None:
        super().__init__(fn, _BY)
        self.configs = list(configs) or [Config({})]
        self.key = list(key)
        arrays = (*method.hooks.reset_to_zero, *method.hooks.restore_value)
        self.check_parameters(_BY, [*key, *(name.partition(".")[0] for name in arrays)])
        self.check_parameters(_BY, [name for config in self.configs for name in config.kwargs])
        self.cache: dict[object, Config] = {}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, float] = {}
        self.bench_time = 0.0
        self._method = method
        self._cache_results = cache_results
        self._tuned = {name for config in self.configs for name in config.all_kwargs()}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<tile.autotune of {self.fn!r}, {len(self.configs)} configurations>"

    # --- launching -----------------------------------------------------------------------------

    def run(
        self, grid: object, args: Sequence[object], kwargs: Mapping[str, Any]
    ) -> CompiledKernel | None:
        """Launch with the configuration for this kind of call, which may have to be found."""
        self.check_free(_BY, self._tuned, args, kwargs)
        config = self._choose(grid, args, kwargs)
        self.best_config = config
        given = {**kwargs, **config.all_kwargs()}
        self._method.hooks.before(config, by_name(self.parameters, args, given), timed=False)
        return self.fn[with_options(grid, config)](*args, **given)

    def prepare(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> Call:
        """Decide all of a call but the grid, with the configuration that is known for its kind.

        Raises:
            KernelError: None is: a launch has to find it, with a grid.
        """
        self.check_free(_BY, self._tuned, args, kwargs)
        config = self.cache.get(self._kind(args, kwargs))
        if config is None:
            raise KernelError(f"kernel `{self.name}`: expected it to be tuned by a launch before")
        return self.fn.prepare(args, {**kwargs, **config.all_kwargs()})

    def _choose(self, grid: object, args: Sequence[object], kwargs: Mapping[str, Any]) -> Config:
        if len(self.configs) == 1:
            return self.configs[0]
        kind = self._kind(args, kwargs)
        found = self.cache.get(kind)
        if found is not None:
            return found
        with self._lock:  # another thread may be tuning for the same kind
            return self.cache.get(kind) or self._tune(grid, args, kwargs, kind)

    def _kind(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> object:
        """Return what decides which configuration is best."""
        named = by_name(self.parameters, args, kwargs)
        places: list[str] = []
        parts: list[object] = []
        for parameter in self.parameters:
            value = named.pop(parameter.name, None)
            if parameter.constexpr:
                parts.append(_constant(value))
            else:
                parts.append(_type_of(value, places))
            if parameter.name in self.key and not is_array(value):
                parts.append(_constant(value))
        options = [(name, _constant(value)) for name, value in named.items()]
        place = next((place for place in places if place != HOST), current_place())
        return place, *parts, *options

    # --- tuning --------------------------------------------------------------------------------

    def _tune(
        self, grid: object, args: Sequence[object], kwargs: Mapping[str, Any], kind: object
    ) -> Config:
        """Return the fastest configuration, and remember it."""
        started = time.perf_counter()
        trial = Trial(self.fn, self._method, args, kwargs)
        calls = trial.prepared(trial.pruned(self.configs))
        chosen, call = calls[0]
        emulated = call.loaded.place.startswith(EMULATE)
        if len(calls) > 1 and not emulated:
            if _is_capturing(call):
                warnings.warn(
                    f"kernel `{self.name}` is captured before it was tuned for such a call: its "
                    f"first configuration is taken ({chosen}); call it once before",
                    stacklevel=4,
                )
                return chosen
            stored = self._stored_name(calls, kind)
            recalled = _recall(stored, calls)
            if recalled is None:
                self.configs_timings = timings = trial.timings(calls, grid)
                if not timings:  # the grid is empty
                    return chosen
                recalled = min(timings, key=lambda config: timings[config])
                if stored is not None:
                    cache.store(stored, {"config": repr(recalled)})
            chosen = recalled
        self.bench_time = time.perf_counter() - started
        self.cache[kind] = chosen
        return chosen

    def _stored_name(self, calls: Sequence[tuple[Config, Call]], kind: object) -> str | None:
        """Return the entry of the disk cache that holds a choice, None where there is none."""
        if not self._cache_results:
            return None
        kernel = kernel_of(self)
        keys = [kernel.disk_key(call.loaded.compiled.request) for _, call in calls]
        if None in keys:
            return None
        device = launch.device_info(calls[0][1].loaded.place).name
        return cache.key("autotune", device, repr(kind), *map(str, keys), *map(repr, self.configs))


def _recall(stored: str | None, calls: Sequence[tuple[Config, Call]]) -> Config | None:
    """Return the choice that is on disk, if there is one."""
    entry = cache.load(stored) if stored is not None else None
    if entry is None:
        return None
    return next((config for config, _ in calls if repr(config) == entry["config"]), None)


def _is_capturing(call: Call) -> bool:
    place = call.loaded.place
    return launch.driver_of(place).is_capturing(call.stream(), launch.split_place(place)[1])


def _constant(value: object) -> object:
    """Return what stands for a value in a key."""
    try:
        return constant_key(value)
    except (TypeError, ValueError):
        return type(value), repr(value)


def _type_of(value: object, places: list[str]) -> object:
    """Return what stands for a run-time argument's type in a key; note where it lives."""
    if is_compound(value):
        return type(value), *(_type_of(item, places) for item in items_of(value))
    try:
        argument = read(value)
    except KernelError:
        return None  # the launch says what is wrong with it
    if argument is None:
        return _constant(value)
    if argument[2] is not None:
        places.append(argument[2])
    return argument[0].dtype, argument[0].pointer


def autotune(
    configs: Sequence[Config],
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., object] | None = None,
    post_hook: Callable[..., object] | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
) -> Callable[[Launchable], Autotuner]:
    """Launch a kernel with the fastest of some configurations.

        @tile.autotune([tile.Config({"BLOCK": b}, num_warps=w) for b in (128, 512) for w in (4, 8)],
                       key=["n"])
        @tile.jit
        def kernel(x, n, BLOCK: tile.constexpr): ...

        kernel[lambda args: (tile.cdiv(n, args["BLOCK"]),)](x, n)

    The first call of each kind (types of the arguments, values of constexprs and of the parameters
    that `key` names, device) times all configurations; later ones reuse the choice.

    Args:
        configs: The configurations.
        key: Parameters whose values decide which configuration is best.
        prune_configs_by: "early_config_prune", a function from (configurations, arguments by name,
            **keyword arguments) to those worth trying; "perf_model", a function from all arguments
            by keyword to an estimated time; "top_k", how many of those with the least estimate to
            try, or as a float which share of all.
        reset_to_zero: Array parameters to set to zero before every launch.
        restore_value: Array parameters to put back before every timed launch. What a kernel writes
            is put back after tuning in any case.
        pre_hook: Called before every launch as pre_hook(arguments, reset_only=whether it is not a
            timed one), in place of `reset_to_zero`.
        post_hook: Called after a configuration was timed, as post_hook(arguments, exception=None).
        warmup: Milliseconds that a configuration runs before it is timed; 25 if not given.
        rep: Milliseconds that a configuration is timed; 100 if not given.
        use_cuda_graph: Not needed: launches are timed by the device's events.
        do_bench: A function that times, called as do_bench(launch, quantiles=(0.5, 0.2, 0.8)); it
            returns milliseconds, or a sequence that begins with them.
        cache_results: Whether to keep choices on disk, with the compiled kernels.

    Raises:
        KernelError: A name is no parameter, or an argument is not one that there is.
    """
    pruning = dict(prune_configs_by or {})
    known = set(Pruning.__dataclass_fields__)
    if unknown := set(pruning) - known:
        raise KernelError(
            f"{_BY}: expected prune_configs_by to hold {', '.join(sorted(known))}, "
            f"found {', '.join(sorted(unknown))}"
        )
    if use_cuda_graph:
        raise KernelError(f"{_BY}: expected use_cuda_graph to be False: events time launches")
    options = {name for config in configs for name in config.options}
    if wrong := options - set(OPTION_NAMES):
        raise KernelError(
            f"{_BY}: expected options among {', '.join(OPTION_NAMES)}, "
            f"found {', '.join(sorted(wrong))}"
        )
    hooks = Hooks(tuple(reset_to_zero or ()), tuple(restore_value or ()), pre_hook, post_hook)
    default = Budget()
    budget = Budget(
        default.warmup if warmup is None else warmup, default.rep if rep is None else rep
    )
    method = Method(Pruning(**pruning), hooks, budget, do_bench)
    return lambda fn: Autotuner(fn, configs, key, method, cache_results)
