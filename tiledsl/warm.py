"""Launch again what was launched before: the short way of a call that repeats.

Most launches repeat an earlier one, with other addresses, and numbers of the same kind. Such a call
is recognized by a *key*: an object for all that the compiler and the launch know of each argument
(its `ArgType` and its device; there is one such object for each pair), the constexprs, the
options, and which arrays are the same. All else was checked when the key was first met, and is not
looked at again.

Contract: only calls whose arrays are torch's, those of `TensorDescriptor`s too, and all on one GPU,
have a key; every other call, and every wrong one, goes the long way, which says what is wrong. What
is launched for a key is what the long way launches, with the same values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, cast, final

import numpy as np

from tiledsl.arrays import is_torch_tensor, read
from tiledsl.compile import CompiledKernel
from tiledsl.descriptor import TensorDescriptor
from tiledsl.launch import Loaded, check_grid, split_place, torch_stream
from tiledsl.parameters import Parameter, constant_key
from tiledsl.specialize import DIVISOR, ArgType, sharing

Values = tuple[Any, ...]


@final
class Known:
    """What is known of an argument beside its value; compared by identity.

    `type` is its `ArgType`, of a descriptor its constant part and the `ArgType`s of its leaves.
    """

    __slots__ = ("place", "type")

    def __init__(self, type_: object, place: str | None) -> None:
        self.type = type_
        self.place = place


_known = cache(Known)
_FLOAT = _known(ArgType("fp32"), None)
_NONE = _known(None, None)
"""Of the argument None, which is a constant."""

Key = tuple[tuple[Known, ...], Values, Values, Values, tuple[int, ...]]
"""The arguments; types and values of the constexprs; the options; which arrays are the same."""


# Reading arguments.

Reader = Callable[[Any], tuple[Known, Any]]
"""Gives what is known of an argument and its value; raises where the long way has to read it."""


def _read_argument(value: object) -> tuple[ArgType, Any, str | None]:
    argument = read(value)
    if argument is None:
        raise _Unread
    return argument


class _Unread(Exception):
    """The long way has to read an argument."""


def _read_number(value: object) -> tuple[Known, Any]:
    type_, number, _ = _read_argument(value)
    return _known(type_, None), number


_read_int = lru_cache(maxsize=4096)(_read_number)  # sizes and strides come again at every launch


_tensors: dict[tuple[int, object], tuple[Known, Known]] = {}
"""What is known of a tensor of some device and dtype, at any address and at a multiple of 16."""


def _read_tensor(tensor: Any) -> tuple[Known, Any]:
    if not tensor.is_cuda:
        raise _Unread
    kind = tensor.get_device(), tensor.dtype
    if kind not in _tensors:
        type_, _, place = _read_argument(tensor)
        _tensors[kind] = (
            _known(ArgType(type_.dtype, pointer=True), place),
            _known(ArgType(type_.dtype, pointer=True, divisor=DIVISOR), place),
        )
    address: int = tensor.data_ptr()
    return _tensors[kind][address % DIVISOR == 0], address


def _read_descriptor(value: TensorDescriptor) -> tuple[Known, Any]:
    """Read a descriptor; its value is that of each leaf, in order."""
    kind = type(value.base)
    if not (is_torch_tensor(kind) and _is_met(kind)):
        raise _Unread
    base, address = _readers[kind](value.base)
    types = (base.type, *(_read_int(number)[0].type for number in value.numbers))
    return _known((value.boxes, *types), base.place), (address, *value.numbers)


_readers: dict[type, Reader] = {
    int: _read_int,
    float: lambda value: (_FLOAT, value),
    type(None): lambda value: (_NONE, value),
    TensorDescriptor: _read_descriptor,
}


def _is_met(kind: type[Any]) -> bool:
    """Return whether a Python type has a reader; choose it where it has none yet."""
    if kind not in _readers:
        if issubclass(kind, int | float | np.generic):
            _readers[kind] = _read_number
        elif is_torch_tensor(kind):
            _readers[kind] = _read_tensor
    return kind in _readers


# Binding arguments.

_MISSING = object()


def binder(parameters: Sequence[Parameter]) -> Callable[..., tuple[Values, dict[str, Any]]]:
    """Return a function that takes a call's arguments, and gives a value a parameter and the rest.

    It has the kernel's parameters for its own, so that Python does the work. A parameter that comes
    after one with a default and has none itself is given an object that no kernel takes.
    """
    names = [parameter.name for parameter in parameters]
    rest = "options"
    while rest in names:
        rest += "_"
    given: dict[str, object] = {}
    heads: list[str] = []
    for parameter in parameters:
        required = parameter.default is inspect.Parameter.empty
        if required and not given:
            heads.append(parameter.name)
        else:
            given[parameter.name] = _MISSING if required else parameter.default
            heads.append(f"{parameter.name}=given[{parameter.name!r}]")
    head = ", ".join([*heads, f"**{rest}"])
    body = "".join(f"{name}, " for name in names)
    return eval(f"lambda {head}: (({body}), {rest})", {"given": given})


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Values]:
    """Return a function that takes these items of a sequence."""
    match positions:
        case []:
            return lambda values: ()
        case [only]:
            return lambda values: (values[only],)
        case _:
            return itemgetter(*positions)


# Repeating launches.

_NoneType = type(None)
_PLAIN = frozenset({int, bool, str, _NoneType})
"""Types whose values are the same constant, or the same argument, if they are equal."""
_NUMBERS = frozenset({int, bool, float, _NoneType})
"""Types of arguments that are passed as they are."""
_PASSED = _NUMBERS | {TensorDescriptor}
"""Types of arguments, beside tensors, that a plan is made for."""
_MOST = 4096
"""Calls that are known by their numbers; beyond them all are learned anew."""


@final
class Launch:
    """A kernel loaded on a GPU, for arguments of one key.

    Args:
        loaded: The kernel.
        known: What is known of the arguments, those that are None too, which are not passed.
    """

    def __init__(self, loaded: Loaded, known: Sequence[Known]) -> None:
        self._loaded = loaded
        self._index = split_place(loaded.place)[1]
        self._stream = torch_stream()
        self._pick = _picker([i for i, one in enumerate(known) if one is not _NONE])
        self._nested = any(isinstance(one.type, tuple) for one in known)

    def passed(self, read: Sequence[Any]) -> Sequence[Any]:
        """Return the values to pass, of those of all arguments."""
        picked = self._pick(read)
        if not self._nested:
            return picked
        flat: list[Any] = []
        for value in picked:
            if isinstance(value, tuple):
                flat += cast("Values", value)
            else:
                flat.append(value)
        return flat

    def run(self, grid: object, passed: Sequence[Any]) -> CompiledKernel | None:
        """Launch; returns the compiled kernel, or None where the grid is empty."""
        loaded = self._loaded
        sizes = check_grid(grid, loaded.limits)
        if sizes is None:
            return None
        loaded.launch(sizes, passed, self._stream(self._index))
        return loaded.compiled


@final
class _Plan:
    """How to read calls whose values, one a parameter, are of certain Python types.

    Tensors are read, also those of descriptors, floats only passed, and what else is equal in two
    calls is the same in both.

    Args:
        types: One a parameter.
        constant: Which parameters are constexprs.
    """

    def __init__(self, types: Sequence[type], constant: Sequence[bool]) -> None:
        free = [i for i, fixed in enumerate(constant) if not fixed and types[i] is not _NoneType]
        places = [(i, free.index(i)) for i in free if types[i] not in _NUMBERS]
        self.tensors = [(i, place) for i, place in places if types[i] is not TensorDescriptor]
        # From the last one on: each takes more places than one.
        self.descriptors = [one for one in reversed(places) if one not in self.tensors]
        self.exact = _picker([i for i, kind in enumerate(types) if kind in _PLAIN])
        self.passed = _picker(free)

    @staticmethod
    def serves(types: Sequence[type], constant: Sequence[bool]) -> bool:
        """Whether there is a plan for these types."""
        return all(
            kind in _PLAIN if fixed else kind in _PASSED or is_torch_tensor(kind)
            for kind, fixed in zip(types, constant, strict=True)
        )


class Launches:
    """The launches of one kernel that calls may repeat."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._bind = binder(parameters)
        self._constant = [parameter.constexpr for parameter in parameters]
        self._pick_constants = _picker([i for i, fixed in enumerate(self._constant) if fixed])
        self._pick_others = _picker([i for i, fixed in enumerate(self._constant) if not fixed])
        self._launches: dict[Key, Launch] = {}
        self._plans: dict[tuple[type, ...], _Plan] = {}
        self._exact: dict[object, Launch] = {}

    def find(
        self, args: Sequence[object], kwargs: Mapping[str, Any]
    ) -> tuple[Launch, Values, Sequence[Any]] | None:
        """Return the launch that a call repeats, a value a parameter, and what to pass."""
        try:
            values, options = self._bind(*args, **kwargs)
            plan = self._plans.get(tuple(map(type, values)))
            if plan is None:
                known, read = self._read(values, options)
                launch = self._launches[known]
                return launch, values, launch.passed(read)
            passed = list(plan.passed(values))
            exact: list[object] = [plan, plan.exact(values), tuple(options.items())]
            addresses: list[int] = []
            for i, place in plan.tensors:  # as `_read_tensor`, without the call
                tensor = values[i]
                if not tensor.is_cuda:
                    return None
                address: int = tensor.data_ptr()
                passed[place] = address
                addresses.append(address)
                both = _tensors[tensor.get_device(), tensor.dtype]
                exact.append(both[address % DIVISOR == 0])
            for i, place in plan.descriptors:
                found = values[i]
                tensor = found.base
                if not tensor.is_cuda:
                    return None
                address = tensor.data_ptr()
                passed[place : place + 1] = (address, *found.numbers)
                addresses.append(address)
                both = _tensors[tensor.get_device(), tensor.dtype]
                exact += (both[address % DIVISOR == 0], found.token)
            if len(set(addresses)) < len(addresses):
                exact.append(sharing(addresses))
            key = tuple(exact)
            launch = self._exact.get(key) or self._learn(key, values, options)
            return launch, values, passed
        except Exception:  # whatever is wrong, the long way says it of the argument that it is of
            return None

    def keep(self, args: Sequence[object], kwargs: Mapping[str, Any], loaded: Loaded) -> None:
        """Have a call that went the long way repeated, if it is one that can be."""
        values, options = self._bind(*args, **kwargs)
        kinds: set[type[Any]] = {type(value) for value in self._pick_others(values)}
        if not all(map(_is_met, kinds)):
            return
        with suppress(_Unread, TypeError):  # a constant may have no hash
            key, _ = self._read(values, options)
            if {one.place for one in key[0]} - {None} == {loaded.place}:
                self._launches[key] = Launch(loaded, key[0])
                types = tuple(map(type, values))
                if types not in self._plans and _Plan.serves(types, self._constant):
                    self._plans[types] = _Plan(types, self._constant)

    def forget(self) -> None:
        """Forget all launches; one that another thread is about to learn goes to the old table."""
        self._launches = {}
        self._exact = {}

    def _learn(self, exact: object, values: Values, options: Mapping[str, Any]) -> Launch:
        """Find a launch by its key, and the next time by the call's very numbers."""
        table = self._exact
        launch = self._launches[self._read(values, options)[0]]
        if len(table) >= _MOST:
            table.clear()
        table[exact] = launch
        return launch

    def _read(self, values: Values, options: Mapping[str, Any]) -> tuple[Key, Values]:
        """Return a call's key and the values of the arguments that are no constexprs."""
        readings = [_readers[type(value)](value) for value in self._pick_others(values)]
        known, read = zip(*readings, strict=True)
        addresses: list[int] = [
            cast("Values", value)[0] if isinstance(value, tuple) else value
            for one, value in readings
            if one.place is not None
        ]
        constants = self._pick_constants(values)
        types = tuple(map(type, constants))
        if not _PLAIN.issuperset(types):
            constants = tuple(map(constant_key, constants))
        return (known, types, constants, tuple(options.items()), sharing(addresses)), read
