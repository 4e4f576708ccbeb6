"""What the compiler may know of a run-time argument, and the signature notation for it.

An `ArgType` is a part of a compilation's key. At a launch it is read off the value that was passed
(`tiledsl.arrays`); ahead of time it is written by hand in a signature:

    {"x": "*fp16:16", "n": "i32:16", "stride": "1", "scale": "fp32"}

`*T` is a pointer to T, `:16` says that the address (in bytes) or the integer is a multiple of 16
(`:8` or `:4` of an integer, that it is one of 8 or 4), a literal integer fixes the argument at that
value; `*fp16=x` is a pointer that is always the same address as `x`, before it. Knowing more gives
better code, and a kernel compiled for less still runs: specialization never changes a result, but
that accesses through pointers known to be the same happen in program order.

A launch reads all that can matter of an integer, but a kernel is compiled anew only for what does
(`ArgType.coarse`): whether it is a multiple of 16, and for the strides of tensor descriptors, which
TMA needs to be multiples of 16 bytes, finer (`Strides`). That two pointers are the same matters
where the kernel writes through one (`Written`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tiledsl.dialects.diagnostics import KernelError

DIVISOR = 16
"""The multiple that specialization knows of all arguments: bytes of the widest global access."""
FINER = (8, 4)
"""What else an integer may be a multiple of: elements of 2 and of 4 bytes in a stride of 16."""
_MOST_STRIDE = 2**36
"""Below it are strides that TMA takes, whatever the element type."""

INTEGERS = {f"{sign}{bits}": (bits, sign == "i") for bits in (8, 16, 32, 64) for sign in "iu"}
"""Bits and signedness of each integer name; a bool is "i1"."""
FLOATS = ("fp16", "bf16", "fp32", "fp64", "fp8e4m3", "fp8e5m2")
NAMES = ("i1", *INTEGERS, *FLOATS)
"""Every element type, as signatures spell it."""


@dataclass(frozen=True, slots=True)
class ArgType:
    """What is known of one argument at compile time.

    Attributes:
        dtype: The element type's name, one of `NAMES`.
        pointer: Whether the argument is the address of elements of that type.
        divisor: What the address in bytes, or the integer, is known to be a multiple of: 16, of an
            integer also 8 or 4; 1 if nothing is known.
        value: The integer that the argument always is, or None. Such an argument is still passed.
        extreme: Whether the integer is none that TMA takes for a stride: zero, negative or huge.
            Only launches know it.
        same_as: An earlier pointer argument that has the same address, or "".
    """

    dtype: str
    pointer: bool = False
    divisor: int = 1
    value: int | None = None
    extreme: bool = False
    same_as: str = ""
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Every launch hashes one a parameter, and there are few of them.
        known = hash(self._fields)
        object.__setattr__(self, "_hash", known)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[ArgType], tuple[object, ...]]:
        # Another process hashes text with another seed.
        return ArgType, self._fields

    @property
    def _fields(self) -> tuple[object, ...]:
        known = self.dtype, self.pointer, self.divisor, self.value, self.extreme
        return (*known, self.same_as)

    def __str__(self) -> str:
        if self.value is not None:
            return str(self.value)
        multiple = f":{self.divisor}" if self.divisor > 1 else ""
        same = f"={self.same_as}" if self.same_as else ""
        return f"{'*' if self.pointer else ''}{self.dtype}{multiple}{same}"

    @property
    def kind(self) -> str:
        """How the argument is packed for a launch: a kind of `targets.arguments`."""
        return "ptr" if self.pointer else KINDS[self.dtype]

    def plain(self) -> ArgType:
        """Return the type alone."""
        return ArgType(self.dtype, self.pointer)

    def coarse(self, stride: int | None = None) -> ArgType:
        """Return what is worth compiling a kernel anew for.

        Args:
            stride: What the integer has to be a multiple of in order that TMA takes it for a
                stride; None where it is no stride.
        """
        if self.pointer or self.value is not None:
            return self
        keeps = self.divisor == DIVISOR if stride is None else self.divisor >= stride
        keeps &= stride is None or not self.extreme
        return _integer(self.dtype, self.divisor if keeps else 1, False)


KINDS = {
    "i1": "bool",
    **{name: f"{'i' if signed else 'ui'}{bits}" for name, (bits, signed) in INTEGERS.items()},
    "fp16": "f16",
    "bf16": "bf16",
    "fp32": "f32",
    "fp64": "f64",
    "fp8e4m3": "f8E4M3FN",
    "fp8e5m2": "f8E5M2",
}
"""The packing kind of each scalar type."""


def integer_type(value: int) -> str | None:
    """Return the first of i32, i64 and u64 that holds a Python integer, or None."""
    if -(2**31) <= value < 2**31:
        return "i32"
    if -(2**63) <= value < 2**63:
        return "i64"
    return "u64" if 0 <= value < 2**64 else None


@cache
def _integer(dtype: str, divisor: int, extreme: bool) -> ArgType:
    return ArgType(dtype, divisor=divisor, extreme=extreme)


@cache
def _one(dtype: str) -> ArgType:
    return ArgType(dtype, value=1)


def specialize_integer(dtype: str, value: int) -> ArgType:
    """Return all that a launch knows of an integer argument: 1 is a constant."""
    if value == 1:
        return _one(dtype)
    divisor = next((d for d in (DIVISOR, *FINER) if value % d == 0), 1)
    return _integer(dtype, divisor, not 0 < value < _MOST_STRIDE)


class Strides(dict[str, int]):
    """Arguments that a kernel makes strides of tensor descriptors of, and what TMA needs of them.

    Each is mapped to the least number that it has to be a multiple of: 16 bytes in elements.
    """

    def learn(self, more: Mapping[str, int]) -> None:
        """Add the strides of another compilation of the same kernel."""
        for name, divisor in more.items():
            self[name] = min(divisor, self.get(name, divisor))

    def coarse(self, signature: Mapping[str, ArgType]) -> dict[str, ArgType]:
        """Return what is worth compiling a kernel anew for, of each argument."""
        return {name: argument.coarse(self.get(name)) for name, argument in signature.items()}


class Written(set[str]):
    """Pointer arguments that a kernel writes through, as far as compilations have told."""

    def coarse(self, signature: Mapping[str, ArgType]) -> dict[str, ArgType]:
        """Return the signature without pointers that are the same but only read through."""
        first = {name: argument.same_as or name for name, argument in signature.items()}
        ordered = {first.get(name) for name in self}
        return {
            name: replace(argument, same_as="")
            if argument.same_as and argument.same_as not in ordered
            else argument
            for name, argument in signature.items()
        }


def sharing(addresses: Sequence[float]) -> tuple[int, ...]:
    """Return for each address the place of the first that equals it; () where all differ."""
    if len(set(addresses)) == len(addresses):
        return ()
    return tuple(map(addresses.index, addresses))


def parse(text: str, parameter: str) -> ArgType:
    """Read one entry of a signature.

    Args:
        text: As "*fp16:16", "i32:8", "1".
        parameter: Whose entry it is, for the message.

    Raises:
        KernelError: The text is none of the three forms.
    """
    body = str(text).strip()  # an integer stands for itself
    if body.lstrip("-").isdigit():
        value = int(body)
        dtype = integer_type(value)
        if dtype is not None:
            return ArgType(dtype, value=value)
    body, same, other = body.partition("=")
    base, colon, multiple = body.partition(":")
    pointer = base.startswith("*")
    dtype = base.removeprefix("*")
    known = [str(DIVISOR)] if pointer else [str(d) for d in (DIVISOR, *FINER)]
    takes_multiple = pointer or dtype in INTEGERS
    wrong = dtype not in NAMES or (colon and (multiple not in known or not takes_multiple))
    if wrong or (same and not (pointer and other)):
        raise KernelError(
            f"signature of `{parameter}`: expected `*dtype`, `dtype` or an integer, with `:16` "
            "where a pointer or integer is a multiple of 16 (`:8`, `:4` of integers), and `=x` "
            f"where a pointer is the same as `x`, found {text!r}",
            hint=f"dtype is one of {', '.join(NAMES)}",
        )
    return ArgType(dtype, pointer, int(multiple or 1), same_as=other)


def check_same(kernel: str, signature: Mapping[str, ArgType]) -> None:
    """Raise where a pointer is said to be the same as no earlier pointer with an address."""
    known: set[str] = set()
    for name, argument in signature.items():
        if argument.same_as and argument.same_as not in known:
            raise KernelError(
                f"kernel `{kernel}`: signature of `{name}`: expected a pointer before it to be "
                f"the same as, found `{argument.same_as}`"
            )
        if argument.pointer and not argument.same_as:
            known.add(name)
