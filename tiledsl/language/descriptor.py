"""Tensor descriptors: a strided tensor in memory, read and written in boxes of one shape.

What a box has outside of the tensor reads as zero (or NaN) and is not written, element by element,
so a kernel needs no masks at ragged edges. Where the chip has a unit that copies boxes (TMA) a
descriptor is how a kernel gets to use it; elsewhere its accesses are masked loads and stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tiledsl.descriptor import MOST_DIMENSIONS, PADDING
from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, int32, int64, unwrap
from tiledsl.language import casts
from tiledsl.language.atomics import ADDED
from tiledsl.language.memory import converted
from tiledsl.language.operands import as_value, broadcast_to, static_shape
from tiledsl.language.types import Shape, check_shape
from tiledsl.language.value import Operand, Value, build, build_all, describe


class TensorDescriptor:
    """A strided tensor as a kernel sees it: what `make_tensor_descriptor` makes.

    An argument that is a `tile.TensorDescriptor` is one too.

    Attributes:
        base: Pointer to its first element.
        shape: Elements along each dimension.
        strides: Elements from one to the next along each dimension.
        block_shape: The shape of the boxes.
    """

    def __init__(
        self,
        base: Value,
        shape: Sequence[Value],
        strides: Sequence[Value],
        block_shape: Shape,
        padding: str,
    ) -> None:
        self.base = base
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.block_shape = block_shape
        self._padding = padding

    def __repr__(self) -> str:
        return f"tensor descriptor of {self.dtype} in boxes of {self.block_shape}"

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.base.dtype.element_ty

    def load(self, offsets: Sequence[Operand]) -> Value:
        """Read the box whose first element has the indices `offsets`.

        Args:
            offsets: Integers, one a dimension; they may lie outside of the tensor.

        Returns:
            A tile of shape `block_shape`; what is outside of the tensor is 0, or NaN.

        Raises:
            KernelError: There are not as many offsets as dimensions, or one is no integer.
        """
        padding = self._padding if self.dtype.is_floating() else "zero"
        return build(
            tile.DescriptorLoadOp,
            self._parts(offsets, "load"),
            dtype=self.dtype,
            shape=self.block_shape,
            padding=None if padding == "zero" else padding,
        )

    def store(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Write a box; what lies outside of the tensor is left out.

        Args:
            offsets: As of `load`.
            value: A tile of shape `block_shape`, or what broadcasts to it, converted to the
                element type.

        Raises:
            KernelError: As of `load`, or the value does not fit.
        """
        stored = broadcast_to(converted(value, self.dtype), self.block_shape)
        parts = [*self._parts(offsets, "store"), stored]
        build_all(tile.DescriptorStoreOp, parts, types=[])

    def atomic_add(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Add to a box, atomically for each element; what lies outside is left out.

        It has no order with anything else ("relaxed").

        Args:
            offsets: As of `load`.
            value: As of `store`.

        Raises:
            KernelError: As of `store`, or the element type has no atomic addition.
        """
        if self.dtype not in ADDED:
            names = ", ".join(one.name for one in ADDED)
            raise KernelError(f"expected a tensor of {names} for `atomic_add`, found a {self!r}")
        added = broadcast_to(converted(value, self.dtype), self.block_shape)
        parts = [*self._parts(offsets, "atomic_add"), added]
        build_all(tile.DescriptorStoreOp, parts, types=[], adds=True)

    def _parts(self, offsets: Sequence[Operand], what: str) -> list[Value]:
        return [self.base, *self.shape, *self.strides, *self._offsets(offsets, what)]

    def _offsets(self, offsets: Sequence[Operand], what: str) -> list[Value]:
        rank = len(self.block_shape)
        given = unwrap(offsets)
        listed = cast("Sequence[Operand]", given if isinstance(given, list | tuple) else ())
        if len(listed) != rank:
            found = describe(cast("object", given))
            raise KernelError(
                f"expected {rank} offsets for `{what}` of a {self!r}, found {found}",
                hint=f"desc.{what}([{', '.join('ijklm'[:rank])}]"
                + (", value)" if what != "load" else ")"),
            )
        return [_index(one, "an offset") for one in listed]


def make_tensor_descriptor(
    base: Operand,
    shape: Sequence[Operand],
    strides: Sequence[Operand],
    block_shape: Sequence[object],
    padding_option: str = "zero",
) -> TensorDescriptor:
    """Describe a strided tensor of which a kernel reads and writes boxes.

    Args:
        base: Pointer to the tensor's first element.
        shape: Elements along each dimension, integers; one to five dimensions.
        strides: Elements from one to the next along each dimension.
        block_shape: The boxes' shape, powers of two.
        padding_option: "zero" or "nan": what floats outside of the tensor read as.

    Raises:
        KernelError: An argument is of another kind, or the numbers of dimensions differ.
    """
    pointer = unwrap(base)
    if not isinstance(pointer, Value) or not pointer.dtype.is_ptr() or pointer.shape:
        raise KernelError(f"expected a pointer as `base` of a descriptor, found {describe(base)}")
    block = static_shape(list(block_shape))
    check_shape(block)
    rank = len(block)
    if not 1 <= rank <= MOST_DIMENSIONS:
        raise KernelError(f"expected 1 to {MOST_DIMENSIONS} dimensions, found {rank}")
    for name, values in (("shape", shape), ("strides", strides)):
        if len(values) != rank:
            raise KernelError(f"expected {rank} numbers as `{name}`, found {len(values)}")
    if padding_option not in PADDING:
        raise KernelError(f'expected "zero" or "nan", found {describe(padding_option)}')
    sizes = [_index(one, "a size") for one in shape]
    steps = [_index(one, "a stride") for one in strides]
    return TensorDescriptor(pointer, sizes, steps, block, padding_option)


def _index(value: Operand, what: str) -> Value:
    """Return an integer scalar as i32, or as i64 if it is wider."""
    found = as_value(value)
    if not found.dtype.is_int() or found.dtype.is_bool() or found.shape:
        raise KernelError(f"expected an integer as {what} of a descriptor, found {describe(value)}")
    wide = found.dtype.primitive_bitwidth > 32 or (
        found.dtype.primitive_bitwidth == 32 and not found.dtype.is_int_signed()
    )
    return casts.to(found, int64 if wide else int32)
