"""What may have happened to memory since the last barrier, as values.

A `State` is the set of accesses that no barrier has ordered yet, and of what is still under way;
an `Action` is what one op does to it. States compare equal and join, so that a walk round a loop
can tell when nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from mlir import ir

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.transforms.access import BARRIERS, Global, Shared
from tiledsl.transforms.rewrite import is_inside
from tiledsl.transforms.slot_index import UNKNOWN, Slot
from tiledsl.transforms.stores_in_flight import BoxStore, Flight, Wait

_NOTHING = frozenset[Shared]()


@dataclass(frozen=True)
class Action:
    """What an op does, in order: accesses, an inner barrier, and what follows it.

    Attributes:
        shared: Accesses of shared memory.
        copies: Shared buffers that asynchronous copies begin to write.
        waits: Copies groups that may stay in flight, where the op waits.
        touched: Accesses of global memory.
        after: Shared accesses behind the op's own barrier, where it has one.
        alone: Whether that barrier is of one block of several that run the program.
        flying: Shared accesses that go on until a product is waited for.
        lands: Products that may stay in flight, where the op waits for the others.
        checked: Shared accesses that must not meet earlier ones, and that later ones wait for by
            themselves, at a transaction barrier.
        given_up: Shared accesses of others that the op lets happen, when products are over.
        stores: Copies from shared memory that it begins.
        store_wait: Which of them it waits for.
    """

    shared: tuple[Shared, ...] = ()
    copies: tuple[Shared, ...] = ()
    waits: int | None = None
    touched: tuple[Global, ...] = ()
    after: tuple[Shared, ...] | None = None
    alone: bool = False
    flying: tuple[Shared, ...] | None = None
    lands: int | None = None
    checked: tuple[Shared, ...] = ()
    given_up: tuple[Shared, ...] = ()
    stores: tuple[BoxStore, ...] = ()
    store_wait: Wait | None = None


@dataclass(frozen=True)
class State:
    """The accesses that may have happened since the last barrier, and those in flight.

    Attributes:
        shared: Accesses of shared memory since the last barrier.
        copies: What asynchronous copies in flight write.
        reading: What they read, which goes on until they are waited for.
        touched: Accesses of global memory since the last barrier.
        flying: What products in flight read, the latest product first.
        storing: Copies from shared memory in flight.
    """

    shared: frozenset[Shared] = frozenset()
    copies: frozenset[Shared] = frozenset()
    reading: frozenset[Global] = frozenset()
    touched: frozenset[Global] = frozenset()
    flying: tuple[frozenset[Shared], ...] = ()
    storing: Flight = field(default_factory=Flight)

    def awaited(self, action: Action) -> Wait | None:
        """Give the wait for copies from shared memory that an action needs before it, if any."""
        shared = (*action.shared, *action.copies, *action.checked, *(action.after or ()))
        touched = (*action.touched, *(one.target for one in action.stores))
        return self.storing.wanted(shared, touched)

    def conflict(self, action: Action) -> str:
        """Give the kind of barrier that must stand before an action, "" for none."""
        if self.awaited(action) is not None:
            raise CompilerBug(f"expected {self.storing} to be waited for before {action}")
        touched = (*action.touched, *(one.target for one in action.stores))
        if any(old.conflicts(new) for old in self.touched for new in touched):
            return "all"
        new_shared = (*action.shared, *action.copies, *action.checked)
        for old in (one for product in self.flying for one in product):
            if any(old.conflicts(new) for new in (*new_shared, *action.given_up)):
                raise CompilerBug(f"expected {old} to be waited for before it is overwritten")
        new_shared += action.flying or ()
        new_shared += tuple(one.source for one in action.stores if one.source is not None)
        kinds = [old.barrier(new) for old in self.shared for new in new_shared]
        return max(kinds, key=BARRIERS.index, default="")

    def after_barrier(self, memory: str) -> State:
        """Give what is left to be ordered after a barrier."""
        if memory == "warpgroup":
            met = (
                one if one.met == one.by_warpgroup else replace(one, met=one.by_warpgroup)
                for one in self.shared
            )
            return replace(self, shared=frozenset(met))
        touched = frozenset[Global]() if memory == "all" else self.touched
        return replace(self, shared=frozenset(), touched=touched)

    def then(self, action: Action) -> State:
        """Give the state after an action."""
        if action.waits is not None:
            return self._copied(everything=action.waits == 0)
        if action.stores:
            return replace(self, storing=self.storing.issued(action.stores))
        if action.store_wait is not None:
            return self._landed(action.store_wait)
        if action.after is not None:
            touched = self.touched if action.alone else frozenset[Global]()
            return replace(self, shared=frozenset(action.after), touched=touched)
        if action.flying is not None:
            return replace(self, flying=(frozenset(action.flying), *self.flying))
        if action.lands is not None:
            landed = self.shared.union(*self.flying[action.lands :])
            return replace(self, shared=landed, flying=self.flying[: action.lands])
        return replace(
            self,
            shared=self.shared.union(action.shared),
            # Which groups a wait waits for is not followed: the whole buffer is as good as copied.
            copies=self.copies.union(replace(one, slot=UNKNOWN) for one in action.copies),
            reading=self.reading.union(action.touched) if action.copies else self.reading,
            touched=self.touched.union(action.touched),
        )

    def _copied(self, everything: bool) -> State:
        """Let copies that were waited for become accesses that threads wait for by barriers."""
        return replace(
            self,
            shared=self.shared | self.copies,
            copies=frozenset() if everything else self.copies,
            touched=self.touched | self.reading,
            reading=frozenset() if everything else self.reading,
        )

    def _landed(self, wait: Wait) -> State:
        """Let copies from shared memory become accesses that threads wait for by barriers."""
        landed = self.storing.landed(wait)
        read = (one.source for one in landed if one.source is not None)
        written = () if wait.read else (one.target for one in landed)
        return replace(
            self,
            shared=self.shared.union(read),
            touched=self.touched.union(written),
            storing=self.storing.after(wait),
        )

    def joined(self, other: State) -> State:
        """Give what may have happened on either of two ways."""
        return State(
            self.shared | other.shared,
            self.copies | other.copies,
            self.reading | other.reading,
            self.touched | other.touched,
            tuple(a | b for a, b in zip_longest(self.flying, other.flying, fillvalue=_NOTHING)),
            self.storing.joined(other.storing),
        )

    def _with_slots(self, restated: Callable[[Slot], Slot]) -> State:
        """Restate the slots of what is read and written."""

        def restate(one: Shared) -> Shared:
            slot = restated(one.slot)
            return one if slot is one.slot else replace(one, slot=slot)

        def all_of(some: frozenset[Shared]) -> frozenset[Shared]:
            return frozenset(map(restate, some))

        return replace(
            self,
            shared=all_of(self.shared),
            flying=tuple(map(all_of, self.flying)),
            storing=self.storing.restated(source=restate, target=lambda one: one),
        )

    def entering(self, loop: ir.Operation) -> State:
        """Restate the state before a loop for its first trip."""
        return self._with_slots(lambda slot: slot.on_entry(loop))

    def next_trip(self, loop: ir.Operation) -> State:
        """Restate the state at the end of a trip for the next one.

        A pointer computed in the loop has another value by then.
        """

        def forgotten(one: Global) -> Global:
            if isinstance(one.maker, tuple) and is_inside(one.maker[0], loop):
                one = replace(one, maker=None)
            if one.stripe is not None:
                # Of another loop there may be another run by then.
                same = one.stripe.loop == loop
                one = replace(one, stripe=one.stripe if same else None, passed=same)
            if one.region is None:
                return one
            return replace(one, region=one.region.forgotten(lambda v: is_inside(v, loop)))

        restated = self._with_slots(lambda slot: slot.next_trip(loop))
        return replace(
            restated,
            reading=frozenset(map(forgotten, self.reading)),
            touched=frozenset(map(forgotten, self.touched)),
            storing=restated.storing.restated(source=lambda one: one, target=forgotten),
        )

    def leaving(self, loop: ir.Operation) -> State:
        """Restate the state at the end of a loop's last trip for what follows."""
        return self._with_slots(lambda slot: slot.on_exit(loop))
