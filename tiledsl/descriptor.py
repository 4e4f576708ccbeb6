"""`tile.TensorDescriptor`: an array as a kernel argument that is read and written in boxes.

In the kernel it is what `tile.make_tensor_descriptor` makes, with `load`, `store` and `atomic_add`;
it is passed as the array's address, its sizes and its strides, of which each is specialized as if
it were an argument of its own (`x.base`, `x.shape.0`, `x.strides.0`, ...). The boxes' shape and the
padding are a constant, called like the argument: `Boxes`.

In a signature for `tile.compile` it is written

    {"x": "tensor<bf16, 128x64>:16", "y": "tensor<fp32, 32x32, nan>"}

element type, the boxes' shape and the padding, for an array whose last dimension is contiguous;
`:16` says that the address, the last dimension and the other strides are multiples of 16 bytes,
which TMA needs of all but the dimension, and wide accesses without TMA of all. What this does not
say can be written leaf by leaf, with `Boxes` as the constant:

    {"x.base": "*bf16:16", "x.shape.0": "i32", "x.strides.0": "i32:8", ...}, {"x": Boxes((128,))}
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, SupportsIndex, cast, final

from tiledsl.arrays import extent, is_array, numpy_dtype
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import unwrap
from tiledsl.specialize import DIVISOR, NAMES, ArgType, parse

PADDING = ("zero", "nan")
"""What floats outside of a tensor may read as."""
MOST_DIMENSIONS = 5


@dataclass(frozen=True)
class Boxes:
    """How a kernel reads and writes a tensor: the constant part of a descriptor.

    Attributes:
        block_shape: The boxes' shape, powers of two.
        padding: "zero" or "nan": what floats outside of the tensor read as.

    Raises:
        KernelError: An argument is none of these.
    """

    block_shape: tuple[int, ...]
    padding: str = "zero"
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    LEAVES = ("base", "shape", "strides")
    """What is passed at run time."""

    def __post_init__(self) -> None:
        block = _integers(self.block_shape, "block_shape")
        if any(n <= 0 or n & (n - 1) for n in block):
            raise _wrong("powers of two as `block_shape`", self.block_shape)
        if not 1 <= len(block) <= MOST_DIMENSIONS:
            raise _wrong(f"1 to {MOST_DIMENSIONS} dimensions", self.block_shape)
        if self.padding not in PADDING:
            raise _wrong('"zero" or "nan" as `padding`', self.padding)
        object.__setattr__(self, "block_shape", block)
        object.__setattr__(self, "_hash", hash((block, self.padding)))  # every launch asks for it

    def __hash__(self) -> int:
        return self._hash

    def make(self, leaves: Mapping[str, Any]) -> object:
        """Make the descriptor that the kernel sees, of the leaves' values."""
        from tiledsl.language.descriptor import make_tensor_descriptor

        base, shape, strides = (leaves[name] for name in self.LEAVES)
        return make_tensor_descriptor(base, shape, strides, self.block_shape, self.padding)


@final
class TensorDescriptor:
    """An array of which a kernel reads and writes boxes.

        kernel[grid](tile.TensorDescriptor(x, (128, 64)), ...)

    In the kernel, `x.load([i, j])` is the tile that begins there, zero (or NaN) where the array
    ends; `x.store([i, j], value)` and `x.atomic_add([i, j], value)` leave out what is outside.
    Where the chip copies boxes by itself (TMA on sm_90a) that is how they are read, if the last
    dimension is contiguous, and the address and the other strides are multiples of 16 bytes.

    Args:
        base: An array of any library; its shape and strides are those of the tensor.
        block_shape: The boxes' shape: a power of two for each of one to five dimensions.
        padding: "zero" or "nan": what floats outside of the array read as.
        shape: Elements along each dimension, in place of the array's.
        strides: Elements from one to the next along each dimension, in place of the array's: given
            with `shape`. The tensor begins at the array's first element, and must not leave the
            array's memory.

    Attributes:
        base: The array.
        shape: Elements along each dimension.
        strides: Elements from one to the next along each dimension.
        boxes: The rest.
        numbers: Sizes, then strides.
        token: One object for all descriptors of equal sizes, strides and boxes, quick to compare.

    Raises:
        KernelError: An argument is wrong; or the array's strides are not whole elements.
    """

    __slots__ = ("base", "boxes", "numbers", "shape", "strides", "token")

    def __init__(
        self,
        base: object,
        block_shape: Sequence[SupportsIndex],
        padding: str = "zero",
        *,
        shape: Sequence[SupportsIndex] | None = None,
        strides: Sequence[SupportsIndex] | None = None,
    ) -> None:
        if not is_array(base):
            raise _wrong("an array", base)
        self.base = base
        self.boxes = _boxes(_integers(block_shape, "block_shape"), padding)
        if (shape is None) != (strides is None):
            raise KernelError("TensorDescriptor: expected both `shape` and `strides`, or neither")
        if shape is None or strides is None:
            self.shape, self.strides = _layout(base)
        else:
            self.shape, self.strides = _integers(shape, "shape"), _integers(strides, "strides")
        rank = len(self.boxes.block_shape)
        if not len(self.shape) == len(self.strides) == rank:
            found = f"an array of {len(self.shape)}"
            if shape is not None:
                found = f"{len(self.shape)} sizes and {len(self.strides)} strides"
            raise KernelError(
                f"TensorDescriptor: expected {rank} dimensions, as `block_shape` has, found {found}"
            )
        self.numbers = (*self.shape, *self.strides)
        self.token = _token(self.boxes, self.numbers)

    @staticmethod
    def from_tensor(
        tensor: object, block_shape: Sequence[SupportsIndex], padding: str = "zero"
    ) -> TensorDescriptor:
        """Describe a whole array, by Triton's name."""
        return TensorDescriptor(tensor, block_shape, padding)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The boxes' shape."""
        return self.boxes.block_shape

    @property
    def padding(self) -> str:
        """What floats outside of the tensor read as."""
        return self.boxes.padding

    @property
    def aligned(self) -> bool:
        """Whether its boxes can be copied by TMA, and elsewhere 16 bytes at a time.

        The last dimension is contiguous; the address and the other strides are multiples of 16
        bytes, and positive.
        """
        found = extent(self.base)
        steps = [stride * found.item_bytes for stride in self.strides[:-1]]
        whole = all(step > 0 and step % DIVISOR == 0 for step in steps)
        return whole and self.strides[-1] == 1 and found.address % DIVISOR == 0

    def __repr__(self) -> str:
        kind = type(self.base).__name__
        return (
            f"TensorDescriptor({kind} of shape {self.shape}, strides {self.strides}, "
            f"boxes of {self.block_shape}, {self.padding} outside)"
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _remade, (self.base, self.block_shape, self.padding, self.shape, self.strides)


@lru_cache(maxsize=4096)
def _boxes(block_shape: tuple[int, ...], padding: str) -> Boxes:
    """Return the constant part of a descriptor, which launch after launch is the same."""
    return Boxes(block_shape, padding)


@lru_cache(maxsize=4096)
def _token(boxes: Boxes, numbers: tuple[int, ...]) -> object:
    """Return an object that stands for what a descriptor is but for its array."""
    del boxes, numbers
    return object()


def _remade(
    base: object, block: Sequence[int], padding: str, shape: Sequence[int], strides: Sequence[int]
) -> TensorDescriptor:
    """Make a descriptor that was pickled; a copied array may have other strides than it had."""
    own_shape, own_strides = _layout(base)
    if tuple(shape) == own_shape:
        strides = own_strides
    return TensorDescriptor(base, block, padding, shape=shape, strides=strides)


def _layout(base: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return an array's shape, and its strides in elements."""
    found = extent(base)
    size = found.item_bytes
    if any(stride % size for stride in found.strides):
        raise _wrong(f"strides of whole elements, {size} bytes each", found.strides)
    return found.shape, tuple(stride // size for stride in found.strides)


def _integers(given: object, what: str) -> tuple[int, ...]:
    if _is_plain(given):  # as nearly always, and launches hurry
        return cast("tuple[int, ...]", given)
    try:
        return tuple(operator.index(unwrap(one)) for one in cast("Sequence[Any]", given))
    except TypeError:
        raise _wrong(f"integers as `{what}`", given) from None


_INTEGER: set[type] = {int}


def _is_plain(given: Any) -> bool:
    return given.__class__ is tuple and set(map(type, given)) <= _INTEGER


def _wrong(expected: str, found: object) -> KernelError:
    name = f"{type(found).__name__} ({found!r:.60})"
    return KernelError(f"TensorDescriptor: expected {expected}, found {name}")


# --- signatures ----------------------------------------------------------------------------------

_FORM = re.compile(
    r"tensor<\s*(?P<dtype>\w+)\s*,\s*(?P<block>\w+)\s*(,\s*(?P<padding>\w+)\s*)?>(:(?P<known>\w+))?"
)


def parse_signature(signature: Mapping[str, str]) -> tuple[dict[str, ArgType], dict[str, object]]:
    """Read a whole signature, in the order given.

    Returns:
        The types of run-time arguments by name, descriptors' leaves one by one; and the constants
        that descriptors have.

    Raises:
        KernelError: An entry is of no known form.
    """
    types: dict[str, ArgType] = {}
    constants: dict[str, object] = {}
    if not isinstance(signature, Mapping) or not all(isinstance(name, str) for name in signature):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KernelError(
            "signature: expected a type for each parameter by its name, found "
            f"{type(signature).__name__} ({signature!r:.60})",
            hint='{"x": "*fp16:16", "n": "i32"}',
        )
    for name, text in signature.items():
        if str(text).strip().startswith("tensor"):
            boxes, leaves = _parse_tensor(str(text).strip(), name)
            constants[name] = boxes
            types.update(leaves)
        else:
            types[name] = parse(text, name)
    return types, constants


def _parse_tensor(text: str, name: str) -> tuple[Boxes, dict[str, ArgType]]:
    match = _FORM.fullmatch(text)
    sizes = match["block"].split("x") if match else []
    known = match["known"] if match else None
    if (
        match is None
        or match["dtype"] not in NAMES
        or not all(map(str.isdecimal, sizes))
        or known not in (None, str(DIVISOR))
    ):
        raise KernelError(
            f"signature of `{name}`: expected `tensor<dtype, 128x64>`, with `, nan` for another "
            "padding than zero and `:16` where the address, the last dimension and all strides but "
            f"the last are multiples of 16 bytes, found {text!r}",
            hint=f"dtype is one of {', '.join(NAMES)}",
        )
    boxes = Boxes(tuple(map(int, sizes)), match["padding"] or "zero")
    return boxes, dict(_leaves(name, match["dtype"], len(sizes), known is not None))


def _leaves(name: str, dtype: str, rank: int, aligned: bool) -> Iterator[tuple[str, ArgType]]:
    """Yield the types of a descriptor's leaves, its last dimension contiguous."""
    elements = max(1, DIVISOR // numpy_dtype(dtype).itemsize) if aligned else 1
    yield f"{name}.base", ArgType(dtype, pointer=True, divisor=DIVISOR if aligned else 1)
    for axis in range(rank):
        yield f"{name}.shape.{axis}", ArgType("i32", divisor=elements if axis == rank - 1 else 1)
    for axis in range(rank - 1):
        yield f"{name}.strides.{axis}", ArgType("i32", divisor=elements)
    yield f"{name}.strides.{rank - 1}", ArgType("i32", value=1)
