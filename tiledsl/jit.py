"""`@tile.jit`: a kernel, called as `kernel[grid](arguments)`.

A call binds the arguments, reads each one's `ArgType`, looks up the compiled kernel for those
types, the constexprs, the options and the chip, compiles it if it is new, and launches. A call that
repeats an earlier one on a GPU goes a short way (see `tiledsl.warm`).

Arguments that are None, strings, types, dtypes or functions are constexprs whatever the annotation,
as there is no run-time form of them. Tuples, named tuples and dataclasses are passed item by item
(see `tiledsl.tuples`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tiledsl import cache, launch
from tiledsl.arrays import HOST, is_array, read, same_arrays
from tiledsl.call import Call
from tiledsl.compile import (
    OPTION_NAMES,
    CompiledKernel,
    Request,
    compile_kernel,
    known_targets,
    make_options,
)
from tiledsl.descriptor import TensorDescriptor, parse_signature
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import SCALARS, DType, constexpr, unwrap
from tiledsl.parameters import Parameter, constant_key, parameters_of, positions
from tiledsl.source import Reach, reach
from tiledsl.specialize import ArgType, Strides, Written, check_same
from tiledsl.tuples import Parts, is_compound, items_of, kind_of, parameter_of, run_time_names
from tiledsl.warm import Launches

if TYPE_CHECKING:
    from mlir import ir

_ALIASES = {"maxnreg": "max_registers", "enable_fp_fusion": "fp_contract"}
"""Triton's names of options."""


class JITFunction:
    """A kernel (or a helper of kernels) made by `tile.jit`.

    `kernel[grid](...)` launches it; called inside another kernel it is a helper.
    """

    def __init__(
        self,
        function: Callable[..., object],
        defaults: Mapping[str, Any],
        do_not_specialize: Sequence[str | int] = (),
    ) -> None:
        if not isinstance(function, FunctionType):
            raise KernelError(f"jit: expected a Python function, found {describe(function)}")
        functools.update_wrapper(self, function)
        self.fn = function
        self.name: str = function.__name__
        self.parameters = parameters_of(function)
        self.defaults = dict(defaults)
        self._names = [parameter.name for parameter in self.parameters]
        self._fixed = [parameter.constexpr for parameter in self.parameters]
        self._plain = positions(self.name, self._names, do_not_specialize)
        self._lock = threading.RLock()
        self._reach: Reach | None = None
        self._loaded: dict[object, launch.Loaded] = {}
        self._compiled: dict[object, CompiledKernel] = {}
        self._placed: dict[tuple[CompiledKernel, str], launch.Loaded] = {}
        self._strides = Strides()
        self._written = Written()
        self._launches = Launches(self.parameters)

    def __repr__(self) -> str:
        return f"<tile.jit kernel {self.name}>"

    def __reduce__(self) -> str:
        """Pickle by name, as Python does functions: another process compiles for itself."""
        return pickled_name(self, self.fn.__qualname__)

    def __copy__(self) -> JITFunction:
        """Return the kernel itself, as copying a function does."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> JITFunction:
        """Return the kernel itself."""
        return self

    def __getitem__(self, grid: object) -> Callable[..., CompiledKernel | None]:
        return functools.partial(self._run, grid)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run as a helper inside a kernel that is being traced."""
        from tiledsl.trace import call_helper

        return call_helper(self.fn, args, kwargs)

    # --- binding -------------------------------------------------------------------------------

    def _bind(
        self, args: Sequence[object], kwargs: dict[str, Any]
    ) -> tuple[list[object], dict[str, Any]]:
        """Return one value a parameter, in order, and the options among the keywords."""
        if len(args) > len(self._names):
            raise KernelError(
                f"kernel `{self.name}`: expected at most {len(self._names)} arguments, "
                f"found {len(args)}"
            )
        values = list(args)
        for parameter in self.parameters[len(args) :]:
            value = kwargs.pop(parameter.name, parameter.default)
            if value is inspect.Parameter.empty:
                kind = "constexpr " if parameter.constexpr else ""
                raise KernelError(
                    f"kernel `{self.name}`: {kind}argument `{parameter.name}` is missing"
                )
            values.append(value)
        options = dict(self.defaults)
        for name, value in kwargs.items():
            known = _ALIASES.get(name, name)
            if name in self._names:
                raise KernelError(f"kernel `{self.name}`: argument `{name}` is given twice")
            if known not in OPTION_NAMES:
                raise KernelError(
                    f"kernel `{self.name}`: no parameter or option is called `{name}`",
                    hint=f"parameters: {', '.join(self._names)}; "
                    f"options: {', '.join(OPTION_NAMES)}",
                )
            options[known] = value
        return values, options

    def _check_constant(self, parameter: Parameter, value: object) -> None:
        """Raise unless `value`, which has no run-time form, may be part of the kernel."""
        if parameter.constexpr:
            if is_array(value) or isinstance(value, TensorDescriptor):
                raise KernelError(
                    f"kernel `{self.name}`: argument `{parameter.name}` is a constexpr, "
                    f"expected a value known at compile time, found {describe(value)}"
                )
            return
        if value is None or isinstance(value, str | type | constexpr | DType) or callable(value):
            return
        if isinstance(value, Enum) or is_compound(value):  # without items: others go by leaf
            return
        hint = f"annotate it `{parameter.name}: tile.constexpr` if the kernel depends on it"
        if is_array(value):
            expected = "an array of bools, integers or floats in this machine's byte order"
            hint = f"the element types are {', '.join(map(str, SCALARS))}"
        elif isinstance(value, int):
            expected = "an integer of 64 bits"
        else:
            expected = "an array, a number, a bool, None, a TensorDescriptor, or a tuple, named "
            expected += "tuple or dataclass of these"
        raise KernelError(
            f"kernel `{self.name}`: argument `{parameter.name}`: expected {expected}, "
            f"found {describe(value)}",
            hint=hint,
        )

    # --- launching -----------------------------------------------------------------------------

    def _run(self, grid: object, *args: object, **kwargs: Any) -> CompiledKernel | None:
        """Launch; returns the compiled kernel, or None where the grid is empty."""
        found = self._launches.find(args, kwargs)
        if found is None or self._has_changed():
            return self._run_anew(grid, args, kwargs)
        repeated, values, passed = found
        if callable(grid):
            grid = grid(dict(zip(self._names, values, strict=True)))
        return repeated.run(grid, passed)

    def _has_changed(self) -> bool:
        """Whether a captured variable is another one than when the kernel was compiled."""
        return self._reach is not None and self._reach.changed()

    def _run_anew(
        self, grid: object, args: Sequence[object], kwargs: Mapping[str, Any]
    ) -> CompiledKernel | None:
        """Launch, whatever the arguments are."""
        call = self.prepare(args, kwargs)
        compiled = call.run(grid)
        if compiled is not None and call.loaded.place != HOST and not call.copies:
            with self._lock:
                if call.loaded in self._loaded.values():  # not forgotten meanwhile
                    self._launches.keep(args, kwargs, call.loaded)
        return compiled

    def prepare(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> Call:
        """Read a call's arguments, and compile and load the kernel for them if that is new.

        Raises:
            KernelError: The call is wrong, or the kernel is.
        """
        values, given = self._bind(args, dict(kwargs))
        key: list[object] = []
        packed: list[int | float] = []
        places: list[str | None] = []
        objects: list[object] = []
        try:
            for fixed, value in zip(self._fixed, values, strict=True):
                argument = None if fixed else read(value)
                if argument is None:
                    if not fixed and is_compound(value):
                        key.append(self._read_items(value, packed, places, objects))
                    else:
                        key.append(self._key_of(value))
                    continue
                plain = self._plain and len(key) in self._plain
                key.append(argument[0].plain() if plain else argument[0])
                packed.append(argument[1])
                places.append(argument[2])
                objects.append(value)
        except KernelError as error:  # an array that cannot be read
            words = f"kernel `{self.name}`: argument `{self._names[len(key)]}`: {error.message}"
            raise KernelError(words) from error.__cause__
        place = self._place(key, places)
        if self._has_changed():
            self._forget()
        same = same_arrays(packed, places, objects)
        full_key = (place, *key, *given.items(), *same)
        loaded = self._loaded.get(full_key)
        if loaded is None:
            loaded = self._load(full_key, values, key, same, place, given)
        named = dict(zip(self._names, values, strict=True))
        return Call(self.name, named, loaded, packed, places, objects)

    def _read_items(
        self,
        compound: object,
        packed: list[int | float],
        places: list[str | None],
        objects: list[object],
    ) -> Parts:
        """Return the part of the key that a tuple or the like is; add its leaves to the lists."""
        key: list[object] = [kind_of(compound)]
        for value in items_of(compound):
            argument = read(value)
            if argument is not None:
                key.append(argument[0])
                packed.append(argument[1])
                places.append(argument[2])
                objects.append(value)
            elif is_compound(value):
                key.append(self._read_items(value, packed, places, objects))
            else:
                key.append(self._key_of(value))
        return Parts(key)

    def _key_of(self, value: object) -> object:
        kind = value.__class__
        if kind is int or kind is bool or value is None:  # what most constexprs are
            return kind, value
        try:
            return constant_key(value)
        except (TypeError, ValueError):  # no hash: a writable memoryview raises ValueError
            return value.__class__, repr(value)

    def _place(self, key: Sequence[object], places: Sequence[str | None]) -> str:
        first = places[0] if places else None
        if (
            first is not None
            and first != HOST
            and places.count(first) + places.count(None) == len(places)
        ):
            return first
        return launch.choose_place(list(run_time_names(self._names, key)), places)

    def _load(
        self,
        full_key: object,
        values: Sequence[object],
        key: Sequence[object],
        same: Sequence[tuple[int, int]],
        place: str,
        given: Mapping[str, Any],
    ) -> launch.Loaded:
        with self._lock:
            if full_key in self._loaded:
                return self._loaded[full_key]
            signature: dict[str, ArgType] = {}
            constexprs: dict[str, object] = {}
            for parameter, value, part in zip(self.parameters, values, key, strict=True):
                self._sort(parameter, value, part, signature, constexprs)
            names = list(signature)
            for later, first in same:
                known = signature[names[later]]
                signature[names[later]] = replace(known, same_as=names[first])
            options = make_options(given)
            request = Request(signature, constexprs, launch.chip_of(place), options)
            compiled = self._compile_coarsely(request)
            loaded = self._placed.get((compiled, place)) or launch.Loaded(compiled, place)
            self._placed[compiled, place] = self._loaded[full_key] = loaded
            return loaded

    def _sort(
        self,
        parameter: Parameter,
        value: object,
        part: object,
        signature: dict[str, ArgType],
        constexprs: dict[str, object],
    ) -> None:
        """Put an argument, or the leaves of a tuple, among those of run time or the constants."""
        if isinstance(part, ArgType):
            signature[parameter.name] = part
        elif isinstance(part, Parts) and part.leaves:
            if part.kind is not tuple:
                constexprs[parameter.name] = part.kind
            names = part.names(parameter.name)
            for name, item, inner in zip(names, items_of(value), part.leaves, strict=True):
                self._sort(Parameter(name, constexpr=False), item, inner, signature, constexprs)
        else:
            self._check_constant(parameter, value)
            constexprs[parameter.name] = unwrap(value)

    def _forget(self) -> None:
        """Forget what was compiled: a captured variable has changed since."""
        with self._lock:
            self._reach = None
            self._loaded.clear()
            self._placed.clear()
            self._compiled.clear()
            self._strides.clear()
            self._written.clear()
            self._launches.forget()

    # --- compiling -----------------------------------------------------------------------------

    def _compile_coarsely(self, request: Request) -> CompiledKernel:
        """Compile for as much of a launch's types as makes a difference.

        What does is learned by tracing the kernel: which integers are strides of descriptors, and
        which pointers it writes through.
        """
        while True:
            coarse = replace(request, signature=self._coarse(request.signature))
            with suppress(_Learned):
                compiled = self.compile(coarse, request.signature)
                self._learn(compiled.strides, compiled.written, coarse)
                if self._coarse(request.signature) == coarse.signature:
                    return compiled

    def _coarse(self, signature: Mapping[str, ArgType]) -> dict[str, ArgType]:
        return self._written.coarse(self._strides.coarse(signature))

    def _learn(self, strides: Mapping[str, int], written: Sequence[int], request: Request) -> None:
        """Note what a compilation for `request` tells of the kernel's arguments."""
        names = list(request.signature)
        self._strides.learn(strides)
        self._written.update(names[position] for position in written)

    def compile(
        self, request: Request, launched: Mapping[str, ArgType] | None = None
    ) -> CompiledKernel:
        """Compile for `request`, or find it in memory or on disk.

        Args:
            request: What to compile for.
            launched: All that the launch knows of its arguments, if one asks.

        Raises:
            _Learned: The request is coarser than that launch may be.
        """
        with self._lock:
            key = (
                tuple(request.signature.items()),
                tuple((name, self._key_of(value)) for name, value in request.constexprs.items()),
                request.chip,
                request.options,
            )
            if key not in self._compiled:
                traced = functools.partial(self._trace, launched)
                self._compiled[key] = compile_kernel(
                    self.name, traced, request, self.disk_key(request)
                )
            return self._compiled[key]

    def _trace(self, launched: Mapping[str, ArgType] | None, request: Request) -> ir.Module:
        from tiledsl.trace import trace
        from tiledsl.transforms.kernels import kernels
        from tiledsl.transforms.memory_accesses import written_arguments
        from tiledsl.transforms.place_tensor_maps import strides_of

        module = trace(self.fn, request.signature, request.constexprs, request.options)
        if launched is not None:
            written = [i for kernel in kernels(module) for i in written_arguments(kernel)]
            self._learn(strides_of(module), written, request)
            if self._coarse(launched) != request.signature:
                raise _Learned
        return module

    def disk_key(self, request: Request) -> str | None:
        """Return the entry's name on disk, or None where something captured has no description."""
        if self._reach is None:
            self._reach = reach(self.fn)
        constants = functools.partial(_nothing, **dict(request.constexprs))
        captured = reach(constants, self._reach.mentioned)
        self._reach.watched += captured.watched
        if not (self._reach.stable and captured.stable):
            return None
        types = ", ".join(f"{name}: {argument}" for name, argument in request.signature.items())
        dtypes = ", ".join(argument.dtype for argument in request.signature.values())
        order = ", ".join(self._names)
        return cache.key(
            *(cache.version(), self._reach.digest, captured.digest, types, dtypes, order),
            *(request.chip, repr(request.options)),
        )


class _Learned(Exception):
    """Tracing a kernel told that a launch has to ask for a finer signature."""


def _nothing(**_: object) -> None:
    """Stand for no function: constexprs are hashed as its bound arguments."""


def pickled_name(kernel: Any, path: str) -> str:
    """Return the name in its module by which a kernel is pickled, or what stands around one.

    Raises:
        KernelError: It is not found by that name.
    """
    found: object = sys.modules.get(kernel.__module__)
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is not kernel:
        raise KernelError(
            f"kernel `{kernel.name}`: expected to find it as `{path}` in module "
            f"{kernel.__module__} in order to pickle it, found {describe(found)}",
            hint="define it at the top of a module, under its own name",
        )
    return path


def describe(value: object) -> str:
    """Say what a value is, for a message: its type, and the element type of an array."""
    kind = type(value)
    builtin = kind.__module__ == "builtins"
    name = kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}"
    if is_array(value) and hasattr(value, "dtype"):
        return f"{name} of {getattr(value, 'dtype')}"  # noqa: B009 (arrays of any library)
    return f"{name} ({value!r:.40})"


_Function = TypeVar("_Function", bound=Callable[..., object])


@overload
def jit(function: Callable[..., object], /) -> JITFunction: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., object]], JITFunction]: ...
def jit(
    function: Callable[..., object] | None = None,
    /,
    *,
    do_not_specialize: Sequence[str | int] = (),
    **options: Any,
) -> JITFunction | Callable[[Callable[..., object]], JITFunction]:
    """Make a kernel of a function over tiles.

    Use as `@tile.jit`, or with default options as `@tile.jit(num_warps=8)`. The function is traced
    when it is first launched with arguments of new types.

    Args:
        function: The kernel. Its parameters are arrays (pointers in the kernel), numbers, and
            `tile.constexpr` values known at compile time.
        do_not_specialize: Parameters, by name or position, of which the compiler shall know no more
            than the type: one kernel serves whether an integer is 1, a multiple of 16 or neither.
        **options: Defaults for the options that a launch may give: num_warps, num_stages, num_ctas,
            fp_contract, fast_math, ptxas_options, max_registers, debug. With num_ctas=2 a program
            is run by a cluster of two thread blocks on chips that have those, which split its
            tiles among them; results are the same as with 1, and so is the grid.

    Raises:
        KernelError: An option is unknown, it is no Python function, or it takes *args or **kwargs.
    """
    defaults = {_ALIASES.get(name, name): value for name, value in options.items()}
    unknown = [name for name in defaults if name not in OPTION_NAMES]
    if unknown:
        raise KernelError(
            f"jit: expected options among {', '.join(OPTION_NAMES)}, found {', '.join(unknown)}"
        )
    if function is None:
        return lambda inner: JITFunction(inner, defaults, do_not_specialize)
    return JITFunction(function, defaults, do_not_specialize)


def compile(
    kernel: JITFunction,
    signature: Mapping[str, str],
    constexprs: Mapping[str, object] | None = None,
    target: str = HOST,
    **options: Any,
) -> CompiledKernel:
    """Compile a kernel ahead of time, for any chip, with no device present.

    Args:
        kernel: What `tile.jit` made.
        signature: Type of each run-time parameter, as {"x": "*fp16:16", "n": "i32"}: see
            `tiledsl.specialize`, and `tiledsl.descriptor` for "tensor<fp16, 128x64>:16". Item 0 of
            a tuple `x` is called "x.0"; field `rows` of a named tuple or dataclass "x.rows", and
            its class is the constexpr "x".
        constexprs: Values of the other parameters; those with defaults may be left out.
        target: A chip, as "host", "sm_90a" or "gfx942".
        **options: As of a launch: num_warps, num_stages, ...

    Returns:
        The compiled kernel: `.asm` maps each level's name to its text or bytes, `.stages` lists the
        IR after each pass, `.resources` says what a program takes.

    Raises:
        KernelError: A parameter is missing or unknown, the target is unknown, or the kernel is
            wrong.
    """
    if not isinstance(kernel, JITFunction):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KernelError(
            f"compile: expected a kernel, found {describe(kernel)}",
            hint="a tuned kernel's own is its `.fn`",
        )
    if target not in known_targets() and target != "cpu":
        raise KernelError(f"expected a target among {', '.join(known_targets())}, found {target!r}")
    types, described = parse_signature(signature)
    values = {**(constexprs or {}), **described}
    given = {parameter_of(name) for name in (*types, *values)}
    for name in sorted(given - {parameter.name for parameter in kernel.parameters}):
        raise KernelError(f"kernel `{kernel.name}`: no parameter is called `{name}`")
    for parameter in kernel.parameters:
        if parameter.name in given:
            continue
        if parameter.default is inspect.Parameter.empty:
            kind = "constexpr" if parameter.constexpr else "type of"
            raise KernelError(f"kernel `{kernel.name}`: {kind} `{parameter.name}` is missing")
        values[parameter.name] = parameter.default
    order = [parameter.name for parameter in kernel.parameters]
    ordered = dict(sorted(types.items(), key=lambda item: order.index(parameter_of(item[0]))))
    fixed = dict(sorted(values.items(), key=lambda item: order.index(parameter_of(item[0]))))
    check_same(kernel.name, ordered)
    known = {_ALIASES.get(name, name): value for name, value in options.items()}
    known = {**kernel.defaults, **known}
    chip = HOST if target == "cpu" else target
    return kernel.compile(Request(ordered, fixed, chip, make_options(known)))
