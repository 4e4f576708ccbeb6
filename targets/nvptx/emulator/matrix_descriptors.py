"""Matrices in shared memory as `wgmma` is told of them: 64-bit descriptors and their layouts.

    bits 0-13   start address / 16       bits 32-45  stride byte offset / 16
    bits 16-29  leading byte offset / 16 bits 49-51  base offset
    bits 62-63  swizzle: 0 none, 1 of 128, 2 of 64, 3 of 32 bytes

A matrix is made of units of 16 bytes that stay whole. With S the bytes of the swizzle (16 for
none), unit u of row r of a K-major matrix, whose rows are 32 bytes of one instruction's k, lies at

    swizzled    start + r % 8 * S + r // 8 * stride + u * 16
    none        start + r % 8 * 16 + r // 8 * stride + u * leading

and unit u (8 elements of two bytes) of depth k of an MN-major matrix, with c = S / 16, at

    swizzled    start + k % 8 * S + k // 8 * stride + u % c * 16 + u // c * leading
    none        start + k % 8 * 16 + k // 8 * leading + u * stride

and a swizzle then exchanges units within S bytes by the address: bits 4-6 ^= bits 7-9, as many of
them as S has.

Sources: PTX ISA 8.7, 9.7.15.5.1 "Register Fragments and Shared Memory Matrix Layouts"; CUTLASS,
"mma_traits_sm90_gmma.hpp" (canonical layouts); bit fields and both swizzled layouts of 128 bytes
were checked on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNIT = 16
"""Bytes of a unit."""
Offsets = NDArray[np.int64]

_SWIZZLE_BYTES = np.array([16, 128, 64, 32])
"""By the descriptor's code."""


@dataclass(frozen=True)
class Descriptors:
    """Descriptors, one of each of some matrices; all fields are (n,) in bytes.

    Attributes:
        start: Where the matrix begins.
        leading: The leading byte offset.
        stride: The stride byte offset.
        base: The base offset: rows of 128 bytes that the swizzle's pattern begins before.
        swizzle: Bytes of the swizzle; 16 for none.
    """

    start: Offsets
    leading: Offsets
    stride: Offsets
    base: Offsets
    swizzle: Offsets

    def rows(self, first: Offsets, count: int) -> Offsets:
        """Return where the units of rows of K-major matrices are, (n, count, 2).

        Args:
            first: Each matrix's first row.
            count: Rows.
        """
        row = first[:, None, None] + np.arange(count)[None, :, None]
        unit = np.arange(2)[None, None, :]
        across = np.where(self._plain, self._of(self.leading), UNIT)
        place = row % 8 * self._of(self.swizzle) + row // 8 * self._of(self.stride)
        return self._swizzled(self._of(self.start) + place + unit * across)

    def columns(self, depth: int, first: Offsets, count: int) -> Offsets:
        """Return where the units of MN-major matrices of 16-bit elements are, (n, depth, count).

        Args:
            depth: Of one instruction.
            first: Each matrix's first unit along M or N.
            count: Units.
        """
        k = np.arange(depth)[None, :, None]
        unit = first[:, None, None] + np.arange(count)[None, None, :]
        wide = self._of(self.swizzle) // UNIT
        stride, leading = self._of(self.stride), self._of(self.leading)
        swizzled = k // 8 * stride + unit % wide * UNIT + unit // wide * leading
        plain = k // 8 * leading + unit * stride
        place = k % 8 * self._of(self.swizzle) + np.where(self._plain, plain, swizzled)
        return self._swizzled(self._of(self.start) + place)

    @property
    def _plain(self) -> NDArray[np.bool_]:
        return self._of(self.swizzle) == UNIT

    @staticmethod
    def _of(field: Offsets) -> Offsets:
        return field[:, None, None]

    def _swizzled(self, address: Offsets) -> Offsets:
        row = (address >> 7) - self._of(self.base)
        return address ^ (row & self._of(self.swizzle) // UNIT - 1) << 4


def read_descriptors(bits: NDArray[np.uint64]) -> Descriptors:
    """Take descriptors apart."""
    fields = bits.astype(np.int64)
    code = fields >> 62 & 3
    return Descriptors(
        start=(fields & 0x3FFF) << 4,
        leading=(fields >> 16 & 0x3FFF) << 4,
        stride=(fields >> 32 & 0x3FFF) << 4,
        base=fields >> 49 & 7,
        swizzle=_SWIZZLE_BYTES[code],
    )
