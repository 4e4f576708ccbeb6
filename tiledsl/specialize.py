"""What the compiler may know of a run-time argument, and the signature notation for it.

An `ArgType` is a part of a compilation's key. At a launch it is read off the value that was passed
(`tiledsl.arrays`); ahead of time it is written by hand in a signature:

    {"x": "*fp16:16", "n": "i32:16", "stride": "1", "scale": "fp32"}

`*T` is a pointer to T, `:16` says that the address (in bytes) or the integer is a multiple of 16, a
literal integer fixes the argument at that value. Knowing more gives better code, and a kernel
compiled for less still runs: specialization never changes a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tiledsl.dialects.diagnostics import KernelError

DIVISOR = 16
"""The one multiple that specialization knows: bytes of the widest global access."""

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
        divisible: Whether the address in bytes, or the integer, is a multiple of 16.
        value: The integer that the argument always is, or None. Such an argument is still passed.
    """

    dtype: str
    pointer: bool = False
    divisible: bool = False
    value: int | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Every launch hashes one a parameter, and there are few of them.
        known = hash((self.dtype, self.pointer, self.divisible, self.value))
        object.__setattr__(self, "_hash", known)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[ArgType], tuple[object, ...]]:
        # Another process hashes text with another seed.
        return ArgType, (self.dtype, self.pointer, self.divisible, self.value)

    def __str__(self) -> str:
        if self.value is not None:
            return str(self.value)
        return f"{'*' if self.pointer else ''}{self.dtype}{':16' if self.divisible else ''}"

    @property
    def kind(self) -> str:
        """How the argument is packed for a launch: a kind of `targets.arguments`."""
        return "ptr" if self.pointer else KINDS[self.dtype]


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


def specialize_integer(dtype: str, value: int) -> ArgType:
    """Return the type of an integer argument: 1 is a constant, multiples of 16 are known to be."""
    if value == 1:
        return ArgType(dtype, value=1)
    return ArgType(dtype, divisible=value % DIVISOR == 0)


def parse(text: str, parameter: str) -> ArgType:
    """Read one entry of a signature.

    Args:
        text: As "*fp16:16", "i32", "1".
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
    base, colon, multiple = body.partition(":")
    pointer = base.startswith("*")
    dtype = base.removeprefix("*")
    takes_multiple = pointer or dtype in INTEGERS
    if dtype not in NAMES or (colon and (multiple != str(DIVISOR) or not takes_multiple)):
        raise KernelError(
            f"signature of `{parameter}`: expected `*dtype`, `dtype` or an integer, with `:16` "
            f"where a pointer or integer is a multiple of 16, found {text!r}",
            hint=f"dtype is one of {', '.join(NAMES)}",
        )
    return ArgType(dtype, pointer, bool(colon))


def parse_signature(signature: Mapping[str, str]) -> dict[str, ArgType]:
    """Read a whole signature: parameter name to type, in the order given."""
    return {name: parse(text, name) for name, text in signature.items()}
