"""Run-time loops: `for` over a run-time range, `while` over a run-time condition.

A loop object is what the rewritten `for` statement iterates over: for a loop known at compile time
it gives each item; for a run-time loop it gives one trip, in which the body is traced into a region
(and another if `Carry` asks for it), and then makes the `scf.for` or `scf.while`.

A loop variable is a variable like another that the body sets: after a run-time loop it has a value
only if it had one of that type before. `for` counts in a signed type that holds every value of the
bounds; a step whose sign is not known counts trips instead.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from tiledsl.control_flow.branches import condition_of
from tiledsl.control_flow.carry import Carry, Learned
from tiledsl.control_flow.desugar import RETURN
from tiledsl.control_flow.leaves import Missing, blank
from tiledsl.control_flow.loop_ops import make_for, make_while
from tiledsl.control_flow.trees import UNSET, Scope
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import unwrap
from tiledsl.language.builder import Region, current
from tiledsl.language.ranges import range as run_time_range
from tiledsl.language.trips import Trips
from tiledsl.language.types import to_ir
from tiledsl.language.value import Value

WORDS = "a run-time loop"
UNROLL_LIMIT = 1024
"""Trips of a loop known at compile time that may make ops: more would take the compiler minutes."""
TRIP_LIMIT = 100_000
"""Trips of a `while` known at compile time, whatever it makes: one without end would hang."""


class Loop:
    """What `for` and `while` share.

    Attributes:
        run_time: Whether the loop runs at run time.
        depth: How many regions are open in its body.
        reasons: Why a variable has no value in the body or afterwards.
    """

    def __init__(
        self,
        names: Sequence[str],
        needed: Sequence[str],
        read: Sequence[str],
        mutated: Sequence[str],
        env: Mapping[str, Any],
    ) -> None:
        self.run_time = False
        self.depth = current().depth
        self._described = names, needed, read, mutated
        # `locals()` gives one dictionary a frame, which changes with the next call.
        self._env = dict(env)
        self._learned = Learned()
        self._scope: Scope | None = None
        self._carry: Carry | None = None

    @property
    def reasons(self) -> dict[str, Missing]:
        """Why a variable has no value."""
        return {} if self._carry is None else self._carry.reasons

    @property
    def scope(self) -> Scope:
        """The variables around the loop, noted when it turns out to be one of run time."""
        if self._scope is None:
            names, _, read, _ = self._described
            self._scope = Scope(names, read, self._env)
        return self._scope

    @property
    def carry(self) -> Carry:
        """What this tracing of the body carries."""
        assert self._carry is not None
        return self._carry

    def _new_carry(self) -> Carry:
        _, needed, _, mutated = self._described
        self._carry = Carry(self.scope, needed, mutated, self._learned)
        return self._carry

    def _settled(self) -> bool:
        """Return whether the body need not be traced again, after it has been left."""
        self.scope.restore()
        if not self.carry.again:
            return True
        if self._learned.result is not UNSET:
            self.scope.before.bindings[RETURN] = blank(self._learned.result)
        return False

    def finish(self, env: Mapping[str, Any]) -> tuple[object, ...]:
        """Return what the variables hold after the loop."""
        return self.carry.finish()


class ForLoop(Loop):
    """The hooks of one `for` statement.

    Args:
        iterable: What it runs over.
        targets: Its own variables.
        stop: The variable that a `break` under an `if` sets, if there is one.
        *described: As of `Loop`.
    """

    def __init__(
        self, iterable: object, targets: Sequence[str], stop: str | None, *described: Any
    ) -> None:
        super().__init__(*described)
        self._iterable = unwrap(iterable)
        self._targets = frozenset(targets)
        self._stop = stop
        self._running: object = False
        self._region: Region | None = None
        if isinstance(self._iterable, run_time_range):
            self.run_time = True
            self.depth += 1

    def __iter__(self) -> Iterator[object]:
        if isinstance(self._iterable, run_time_range):
            return self._trace(self._iterable)
        return _unrolled(cast("Iterable[object]", self._iterable))

    def _trace(self, counted: run_time_range) -> Iterator[object]:
        builder = current()
        trips = Trips(counted)
        while True:
            self._new_carry()
            self._region = builder.open(WORDS, [to_ir(trips.counter)])
            yield trips.variable(
                Value(self._region.block.arguments[0], trips.counter, (), self._region)
            )
            builder.close()
            if self._settled():
                break
        make_for(self.carry, self._region, trips, counted, self._stop)

    def begin(self, env: Mapping[str, Any]) -> tuple[object, ...]:
        """Begin a trip; returns what the variables hold in it."""
        assert self._region is not None
        bindings = self.carry.enter(self._region)
        # The loop's own variable was just set; a trip begins only while nothing ended the loop.
        given = {name: env[name] for name in self._targets if name in bindings}
        if self._stop in bindings:
            self._running = bindings[self._stop]
            given[self._stop] = False
        return tuple({**bindings, **given}.values())

    def end(self, env: Mapping[str, Any]) -> tuple[object, ...]:
        """End a trip."""
        if self._stop is not None and env[self._stop] is False:
            env = {**env, self._stop: self._running}
        self.carry.leave(env)
        return ()


def _unrolled(items: Iterable[object]) -> Iterator[object]:
    """Yield the items of a loop known at compile time, if it does not unroll without end."""
    builder = current()
    before = builder.count
    for trip, item in builtins.enumerate(items):
        if trip == UNROLL_LIMIT and builder.count > before:
            raise KernelError(
                f"expected a loop known at compile time to make at most {UNROLL_LIMIT} trips, "
                "as it is unrolled",
                hint="tile.range(...) makes it a loop at run time",
            )
        yield item


class WhileLoop(Loop):
    """The hooks of one `while` statement.

    Whether the condition is known at compile time shows when it is evaluated, so it is evaluated
    once in a region to be dropped. A run-time one is evaluated again in the region that tests it.
    Each trip of a loop known at compile time asks anew: a condition may become one of run time.
    """

    def __init__(self, *described: Any) -> None:
        super().__init__(*described)
        self._probing = False
        self._holds = False
        self._condition: Value | None = None
        self._regions: list[Region] = []

    def __iter__(self) -> Iterator[int]:
        builder = current()
        before, trip = builder.count, 0
        while True:
            self._probing, self._holds = True, False
            builder.open(WORDS)
            yield trip
            if not self._holds:
                break
            trip += 1
            if trip == UNROLL_LIMIT and builder.count > before:
                raise KernelError(
                    f"expected a loop known at compile time to make at most {UNROLL_LIMIT} trips, "
                    "as it is unrolled"
                )
            if trip == TRIP_LIMIT:
                raise KernelError(
                    f"expected a loop known at compile time to end within {TRIP_LIMIT} trips",
                    hint="a condition that depends on a run-time value makes it a loop at run time",
                )
        self._probing = False
        if self.run_time:
            yield from self._trace()

    def _trace(self) -> Iterator[int]:
        builder = current()
        while True:
            self._new_carry()
            self._regions = [builder.open(WORDS)]
            yield 0
            builder.close()
            if self._settled():
                break
        assert self._condition is not None
        make_while(self.carry, self._regions, self._condition)

    def note(self, env: Mapping[str, Any]) -> None:
        """Note the variables before the condition is evaluated."""
        if self._probing:
            self._env = dict(env)

    def begin(self, env: Mapping[str, Any]) -> tuple[object, ...]:
        """Begin the test of a run-time loop; returns what the variables hold in it."""
        return tuple(self.carry.enter(self._regions[0]).values())

    def test(self, condition: object) -> bool:
        """Take the condition; returns whether to go through the body now."""
        builder = current()
        condition = unwrap(condition)
        if not self._probing:
            if not isinstance(condition, Value):
                raise KernelError(
                    "expected the condition of a run-time loop to stay one of run time, "
                    f"found {condition!r}"
                )
            self._condition = condition_of(condition)
            return True
        region = builder.close()
        if isinstance(condition, Value):
            self.run_time = True
            self.depth += 1
            return False
        builder.splice(region)
        self._holds = bool(condition)
        return self._holds

    def enter(self, env: Mapping[str, Any]) -> tuple[object, ...]:
        """Go from the test to the body; returns what the variables hold in it."""
        builder = current()
        self.carry.leave(env)
        builder.close()
        self._regions.append(builder.open(WORDS))
        return tuple(self.carry.enter(self._regions[1]).values())

    def end(self, env: Mapping[str, Any]) -> tuple[object, ...]:
        """End a trip."""
        self.carry.leave(env)
        return ()
