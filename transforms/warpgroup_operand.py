"""How shared memory holds the operands of warpgroup matrix instructions, and where pieces begin.

An operand is a matrix whose one side is k and whose other side is m or n. In memory one of the two
is contiguous (`fastest`): the tile is cut along it into boxes of a swizzle's width, each box holds
one row of that width for each place along the other side (`tma_layout`). An instruction is told
where its piece begins as if nothing were permuted; the permutation follows from address bits.

Source: PTX ISA 8.7, "Asynchronous warpgroup-level matrix shared memory layout".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tiledsl.dialects.layout import LinearLayout
from tiledsl.transforms.tma_layout import tma_layout, tma_mode

_LEAST_BYTES, _MOST_BYTES = 32, 128


@dataclass(frozen=True)
class SharedOperand:
    """An operand as it lies in shared memory.

    Attributes:
        shape: The buffer's (rows, columns).
        element_bytes: Bytes of an element.
        fastest: The axis that is contiguous.
        swizzle_bytes: Bytes of a row of a box: 32, 64 or 128.
        k_axis: Which axis is k.
    """

    shape: tuple[int, int]
    element_bytes: int
    fastest: int
    swizzle_bytes: int
    k_axis: int

    @property
    def layout(self) -> LinearLayout:
        """The layout of the buffer."""
        return tma_layout(self.shape, self.element_bytes * 8, self.swizzle_bytes, self.fastest)

    @property
    def alignment(self) -> int:
        """Bytes that the buffer's start must be a multiple of."""
        return 8 * self.swizzle_bytes

    @property
    def k_contiguous(self) -> bool:
        """Whether k is the contiguous side."""
        return self.fastest == self.k_axis

    @property
    def _box_bytes(self) -> int:
        return self.shape[1 - self.fastest] * self.swizzle_bytes

    def offset(self, across: int, k: int) -> int:
        """Give the byte at which the piece that begins at (m or n, k) begins.

        Args:
            across: Index along m or n.
            k: Index along k.
        """
        fast, slow = (k, across) if self.k_contiguous else (across, k)
        box, inside = divmod(fast * self.element_bytes, self.swizzle_bytes)
        return box * self._box_bytes + slow * self.swizzle_bytes + inside

    @property
    def leading_bytes(self) -> int:
        """Bytes from one box to the next, where an instruction spans several (along m or n)."""
        return 16 if self.k_contiguous else self._box_bytes

    @property
    def stride_bytes(self) -> int:
        """Bytes from eight rows of a box to the next eight."""
        return 8 * self.swizzle_bytes


@lru_cache(maxsize=256)
def shared_operand(
    shape: tuple[int, int], element_bytes: int, fastest: int, k_axis: int
) -> SharedOperand | None:
    """Give the widest swizzle that fits an operand, None if there is none.

    Args:
        shape: The buffer's (rows, columns).
        element_bytes: Bytes of an element.
        fastest: The axis to be contiguous.
        k_axis: Which axis is k.
    """
    row = shape[fastest] * element_bytes
    if row < _LEAST_BYTES or shape[1 - fastest] < 8:
        return None
    return SharedOperand(shape, element_bytes, fastest, min(row, _MOST_BYTES), k_axis)


def operand_of(layout: LinearLayout, element_bytes: int, k_axis: int) -> SharedOperand | None:
    """Recognize the operand that a buffer's layout is, None if instructions cannot read it."""
    mode = tma_mode(layout, element_bytes * 8)
    if mode is None:
        return None
    rows, columns = layout.shape
    fastest, swizzle_bytes = mode
    for axis in (fastest, 1 - fastest):
        found = SharedOperand((rows, columns), element_bytes, axis, swizzle_bytes, k_axis)
        if layout.shape[axis] * element_bytes >= swizzle_bytes and found.layout == layout:
            return found
    return None
