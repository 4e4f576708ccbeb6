"""What copies from shared memory to tensors still do, and who has to wait for them.

A copy (`tgpu.box_store`) reads its buffer and writes its tensor at some time after it was issued.
Each is a group of its own, and a wait names how many of the latest groups may go on. So what is in
flight is a sequence of groups, the latest first; where ways join, each place holds what either way
has there.

- What writes the buffer waits until the copy has read it.
- What reads or writes the tensor waits until the copy is complete: accesses through the same
  argument, or one unknown, and what releases earlier writes to others. Copies to parts that are
  known to be apart (`access.Region`) do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from tiledsl.transforms.access import Global, Shared

_MOST_GROUPS = 16
"""Groups that are told apart; older ones count as the oldest of these."""


@dataclass(frozen=True)
class Wait:
    """A wait for all but the latest `pending` groups; with `read` only until they have read."""

    pending: int
    read: bool

    def joined(self, other: Wait | None) -> Wait:
        """Give the wait that does for both."""
        if other is None:
            return self
        return Wait(min(self.pending, other.pending), self.read and other.read)


@dataclass(frozen=True)
class BoxStore:
    """A copy: what it reads, None once it has, and what it writes."""

    source: Shared | None
    target: Global


_NOTHING = frozenset[BoxStore]()


@dataclass(frozen=True)
class Flight:
    """The groups in flight, the latest first."""

    groups: tuple[frozenset[BoxStore], ...] = ()

    def issued(self, stores: Iterable[BoxStore]) -> Flight:
        """Give what is in flight after one more group."""
        groups = (frozenset(stores), *self.groups)
        kept, rest = groups[:_MOST_GROUPS], groups[_MOST_GROUPS:]
        return Flight((*kept[:-1], kept[-1].union(*rest)) if rest else kept)

    def landed(self, wait: Wait) -> tuple[BoxStore, ...]:
        """Give what a wait is for."""
        return tuple(one for group in self.groups[wait.pending :] for one in group)

    def after(self, wait: Wait) -> Flight:
        """Give what is in flight after a wait."""
        kept, rest = self.groups[: wait.pending], self.groups[wait.pending :]
        if not wait.read:
            return Flight(kept)
        read = (frozenset(replace(one, source=None) for one in group) for group in rest)
        return Flight((*kept, *read))

    def wanted(self, shared: Sequence[Shared], touched: Sequence[Global]) -> Wait | None:
        """Give the wait that must come before some accesses, if any."""
        found: Wait | None = None
        for place, group in enumerate(self.groups):
            for one in group:
                if any(one.target.must_land(new) for new in touched):
                    found = Wait(place, False).joined(found)
                if one.source is not None and any(one.source.conflicts(new) for new in shared):
                    found = Wait(place, True).joined(found)
        return found

    def all(self, *, read: bool) -> Wait | None:
        """Give the wait for everything, if there is anything to wait for."""
        every = [one for group in self.groups for one in group]
        some = any(one.source is not None for one in every) if read else bool(every)
        return Wait(0, read) if some else None

    def joined(self, other: Flight) -> Flight:
        """Give what may be in flight on either of two ways."""
        pairs = zip_longest(self.groups, other.groups, fillvalue=_NOTHING)
        return Flight(tuple(a | b for a, b in pairs))

    def restated(
        self, source: Callable[[Shared], Shared], target: Callable[[Global], Global]
    ) -> Flight:
        """Restate every access."""

        def one(store: BoxStore) -> BoxStore:
            read = None if store.source is None else source(store.source)
            return BoxStore(read, target(store.target))

        return Flight(tuple(frozenset(map(one, group)) for group in self.groups))
