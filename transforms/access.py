"""One access of memory: what it touches, who makes it, and what must stand between two of them.

Accesses of shared memory are told apart by bytes, slots and layouts; those of global memory by the
kernel's argument that they go through, and copies of boxes by their place in the tensor, too.
`insert_barriers` has the rules in prose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlir import ir

from tiledsl.dialects.layout import LinearLayout
from tiledsl.transforms.slot_index import Slot
from tiledsl.transforms.trip_stripes import Stripe

THREAD_0 = "thread 0"
Maker = tuple[ir.Value, LinearLayout] | str
"""Who makes an access: threads by pointers and layout, or the first thread alone."""
BARRIERS = ("", "warpgroup", "shared", "all")
"""What barriers order, each more than the one before."""


def stronger(one: str, other: str) -> str:
    """Give the barrier that does for both."""
    return max(one, other, key=BARRIERS.index)


@dataclass(frozen=True)
class Shared:
    """An access of a shared buffer.

    Attributes:
        buffer: The `tgpu.alloc`.
        start: First byte of the buffer, and
        end: one past the last; both 0 before buffers are placed.
        slot: Which slot.
        writes: Whether it writes.
        layout: How threads share the tile; None if several may touch one element.
        guarded: Whether mbarriers order it after all that was done to the same buffer.
        by_warpgroup: Whether each warpgroup has a part of the buffer, which others leave alone.
        met: Whether the threads of each warpgroup have met since.
    """

    buffer: ir.Operation
    start: int
    end: int
    slot: Slot
    writes: bool
    layout: LinearLayout | None
    guarded: bool = False
    by_warpgroup: bool = False
    met: bool = False

    def barrier(self, later: Shared) -> str:
        """Give the barrier that must stand between this and a later access, "" for none."""
        if not self.conflicts(later):
            return ""
        if self.buffer != later.buffer or not (self.by_warpgroup and later.by_warpgroup):
            return "shared"
        return "" if self.met else "warpgroup"

    def conflicts(self, later: Shared) -> bool:
        """Whether this must come before a later access."""
        if not (self.writes or later.writes):
            return False
        if self.buffer != later.buffer:
            return self.start < later.end and later.start < self.end
        if later.guarded:
            return False
        same_thread = self.layout is not None and self.layout == later.layout
        return not same_thread and not self.slot.differs(later.slot)


@dataclass(frozen=True)
class Region:
    """The part of a tensor that a copy from shared memory writes.

    Two are apart if their indices along a dimension differ by a constant, by enough, in one trip.
    Or if all boxes of both begin at multiples of their extents and are divided alike: then they are
    of one box or of different ones, and one thread issues both copies to any one element.

    Attributes:
        tensor: What describes the tensor.
        first: By dimension the index of the first element: a value, None if it was another
            trip's, plus a constant.
        shape: Elements along each dimension.
        piece: Where in its box the part begins.
        division: How boxes are divided among copies, if they begin at multiples of their extents.
    """

    tensor: tuple[ir.Value, ...]
    first: tuple[tuple[ir.Value | None, int], ...]
    shape: tuple[int, ...]
    piece: tuple[int, ...]
    division: tuple[object, ...] | None

    def misses(self, other: Region) -> bool:
        """Whether the two have no element in common."""
        if self.tensor != other.tensor:
            return False
        if self.same_threads(other) and self.piece != other.piece:
            return True  # of boxes that are one box or have nothing in common
        return any(
            a[0] is not None and a[0] == b[0] and (a[1] + m <= b[1] or b[1] + n <= a[1])
            for a, b, m, n in zip(self.first, other.first, self.shape, other.shape, strict=True)
        )

    def same_threads(self, other: Region) -> bool:
        """Whether one thread issues both copies to any element that both write."""
        divided = self.division is not None and self.division == other.division
        return self.tensor == other.tensor and divided

    def forgotten(self, inside: Callable[[ir.Value], bool]) -> Region:
        """Restate the region of a trip for the next one, given which values are the loop's."""
        first = [(None if v is not None and inside(v) else v, more) for v, more in self.first]
        return replace(self, first=tuple(first))


@dataclass(frozen=True)
class Global:
    """An access of global memory.

    Attributes:
        bases: Numbers of the kernel's arguments that the pointers come from; None if unknown.
        writes: Whether it writes.
        maker: Who makes it, where that is one thread for each element.
        kind: For atomics whose result is not used, and copies that add, the operation: two of one
            kind commute.
        acquires: Whether everything later comes after it.
        releases: Whether everything earlier comes before it.
        region: What a copy from shared memory writes.
        stripe: Where it is in each trip of a loop, and
        passed: whether it was made in an earlier trip of that loop.
    """

    bases: frozenset[int] | None
    writes: bool
    maker: Maker | None = None
    kind: str | None = None
    acquires: bool = False
    releases: bool = False
    region: Region | None = None
    stripe: Stripe | None = None
    passed: bool = False

    def conflicts(self, later: Global) -> bool:
        """Whether a barrier must stand between this and a later access."""
        if self.maker == later.maker == THREAD_0:
            return False
        if self.acquires or later.releases:
            return True
        if not (self.writes or later.writes) or (self.kind and self.kind == later.kind):
            return False
        if self.maker is not None and self.maker == later.maker:
            return False
        if self.passed and self.stripe is not None and self.stripe.passes(later.stripe):
            return False
        if self.region is None or later.region is None:
            return self._meets(later)
        apart = self.region.same_threads(later.region) or self.region.misses(later.region)
        return not apart and self._meets(later)

    def must_land(self, later: Global) -> bool:
        """Whether this, a copy in flight, must be complete before a later access."""
        if later.releases:
            return True
        if self.kind and self.kind == later.kind:
            return False
        if self.region is None or later.region is None:
            return self._meets(later)
        return not self.region.misses(later.region) and self._meets(later)

    def _meets(self, later: Global) -> bool:
        return self.bases is None or later.bases is None or bool(self.bases & later.bases)
