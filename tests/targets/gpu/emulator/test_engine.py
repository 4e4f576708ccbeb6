"""The loop and the scheduler, on programs of a few closures: divergence, spinning, deadlock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.targets.gpu.emulator.worlds import World, instruction
from tiledsl.targets.gpu.emulator.barriers import BarrierWait
from tiledsl.targets.gpu.emulator.engine import Engine
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import BasicBlock


class Machine(Engine):
    """One register of threads and a trace of which units ran which block."""

    def __init__(self, world: World, ends: Sequence[Callable[[Machine], int | None]]) -> None:
        super().__init__(world.cohort, self._blocks(ends), len(world.live))
        self.world = world
        self.register = np.arange(len(world.live))
        self.trace: list[tuple[int, list[int]]] = []
        world.barriers._live = self.scheduler.live  # pyright: ignore[reportPrivateUsage]

    def _blocks(self, ends: Sequence[Callable[[Machine], int | None]]) -> list[BasicBlock]:
        def step_of(number: int) -> Any:
            def step(machine: Machine) -> None:
                machine.trace.append((number, np.flatnonzero(machine.active).tolist()))

            return step

        return [
            BasicBlock([step_of(i)], end, [instruction(i, f"block {i}")])
            for i, end in enumerate(ends)
        ]


def _exit(machine: Machine) -> None:
    machine.scheduler.exit(machine.active)
    machine.world.barriers.reconsider()


def _branch(condition: Callable[[Machine], Any], then: int, other: int) -> Any:
    def end(machine: Machine) -> int | None:
        taken = condition(machine) & machine.active
        rest = machine.active & ~taken
        if not rest.any():
            return then
        if not taken.any():
            return other
        machine.scheduler.go(taken, then)
        machine.scheduler.go(rest, other)
        return None

    return end


def _barrier(following: int) -> Any:
    def end(machine: Machine) -> None:
        phase = machine.world.barriers.arrive(machine.active, 0)
        wait = BarrierWait(machine.world.barriers, 0, phase)
        machine.scheduler.park(machine.active, following, wait, following - 1)

    return end


def test_units_that_parted_meet_where_the_branches_join() -> None:
    world = World(warps=1)
    machine = Machine(
        world, [_branch(lambda m: m.register < 2, 1, 2), lambda _: 3, lambda _: 3, _exit]
    )
    machine.run()
    assert machine.trace == [(0, [0, 1, 2, 3]), (1, [0, 1]), (2, [2, 3]), (3, [0, 1, 2, 3])]


def test_those_furthest_behind_run_first() -> None:
    """A loop that units leave one by one: the others wait behind it."""
    world = World(warps=1)

    def count_down(machine: Machine) -> Any:
        machine.register[machine.active] -= 1
        return machine.register >= 0

    machine = Machine(world, [_branch(count_down, 0, 1), _exit])
    machine.run()
    assert machine.trace[-1] == (1, [0, 1, 2, 3])
    assert [len(units) for _, units in machine.trace] == [4, 3, 2, 1, 4]


def test_full_means_all_that_have_not_ended() -> None:
    world = World(warps=1)
    seen: list[bool] = []

    def note(machine: Machine) -> None:
        seen.append(machine.full)
        _exit(machine)

    machine = Machine(world, [_branch(lambda m: m.register < 2, 1, 2), note, note])
    machine.run()
    assert seen == [False, True]
    assert machine.scheduler.live_count == 0


def test_spinning_on_what_another_group_writes_makes_progress() -> None:
    world = World(warps=1)
    flag: list[int] = []
    machine = Machine(
        world,
        [
            _branch(lambda m: m.register < 2, 1, 3),
            _branch(
                lambda m: np.full(4, not flag), 1, 2
            ),  # the spinning ones come first in the text
            _exit,
            lambda m: flag.append(1) or 2,
        ],
    )
    machine.run()
    assert machine.scheduler.live_count == 0
    assert len(machine.trace) < 5000


def test_spinning_with_a_divergent_branch_makes_progress() -> None:
    world = World(warps=1)
    flag: list[int] = []
    machine = Machine(
        world,
        [
            _branch(lambda m: m.register < 2, 1, 5),
            _branch(lambda m: m.register < 1, 2, 3),
            lambda _: 3,
            _branch(lambda m: np.full(4, not flag), 1, 4),
            _exit,
            lambda m: flag.append(1) or 4,
        ],
    )
    machine.run()
    assert machine.scheduler.live_count == 0


def _spinning_until_others_were_asked() -> Sequence[Callable[[Machine], int | None]]:
    """Make blocks: two threads spin until the others, asked thrice, have set a flag."""
    flag: list[int] = []

    class Soon:
        asked = 0

        def ready(self, mask: Any) -> Any:
            self.asked += 1
            return mask & (self.asked > 2)

        def describe(self, mask: Any) -> str:
            return "a while"

    wait = Soon()

    def sleep(machine: Machine) -> None:
        machine.scheduler.park(machine.active, 3, wait, 2)

    return [
        _branch(lambda m: m.register < 2, 1, 2),
        _branch(lambda m: np.full(4, not flag), 1, 4),
        sleep,
        lambda m: flag.append(1) or 4,
        _exit,
    ]


def test_spinning_alone_lets_those_go_whose_wait_is_over() -> None:
    world = World(warps=1)
    machine = Machine(
        world,
        _spinning_until_others_were_asked(),
    )
    machine.run()
    assert machine.scheduler.live_count == 0


def test_a_barrier_holds_units_until_all_are_there() -> None:
    world = World(warps=2, lanes=2)
    machine = Machine(
        world, [_branch(lambda m: m.register < 2, 1, 2), lambda _: 2, _barrier(3), _exit]
    )
    machine.run()
    assert machine.trace[-1] == (3, [0, 1, 2, 3])
    assert not world.findings


def test_units_that_ended_are_not_waited_for() -> None:
    world = World(warps=2, lanes=2)
    machine = Machine(world, [_branch(lambda m: m.register < 2, 1, 2), _barrier(2), _exit])
    machine.run()
    assert not world.findings
    assert machine.scheduler.live_count == 0


def test_waiting_for_what_never_comes_is_a_deadlock() -> None:
    world = World(warps=2, lanes=2)

    class Never:
        def ready(self, mask: Any) -> Any:
            return mask & False

        def describe(self, mask: Any) -> str:
            return "Godot"

    def park(machine: Machine) -> None:
        machine.scheduler.park(machine.active, 1, Never(), 0)

    machine = Machine(world, [park, _exit])
    machine.run()
    assert world.kinds() == [Kind.DEADLOCK]
    assert world.messages() == ["nothing can go on: 4 wait for Godot"]


def test_a_loop_ends_at_the_limit_of_steps() -> None:
    world = World(warps=1)
    world.cohort.step_limit = 128
    machine = Machine(world, [lambda _: 0])
    machine.run()
    assert world.kinds() == [Kind.ENDLESS]
    assert world.messages() == [
        "no end after 128 steps (basic blocks) of a warp; `step_limit=` or TILEDSL_EMULATE_STEPS "
        "allows more"
    ]


def test_two_groups_that_spin_for_each_other_end() -> None:
    world = World(warps=1)
    world.cohort.step_limit = 10000
    machine = Machine(world, [_branch(lambda m: m.register < 2, 1, 2), lambda _: 1, lambda _: 2])
    machine.run()
    assert world.kinds() == [Kind.ENDLESS]


class Remembering(Machine):
    """One that tells its registers."""

    def registers(self) -> list[Any]:
        return [self.register]


def test_a_state_that_comes_again_is_endless_long_before_the_limit() -> None:
    world = World(warps=1)
    machine = Remembering(world, [_branch(lambda m: m.register < 3, 0, 1), _exit])
    machine.run()
    assert world.kinds() == [Kind.ENDLESS]
    assert world.messages() == [
        "3 threads spin, and nothing changes any more: no register, no memory"
    ]
    assert len(machine.trace) < 5000


def test_a_loop_that_counts_is_not_endless() -> None:
    world = World(warps=1)

    def counts(machine: Machine) -> Any:
        machine.register += 1
        return machine.register < 5000

    machine = Remembering(world, [_branch(counts, 0, 1), _exit])
    machine.run()
    assert not world.kinds()


def test_whoever_waits_for_those_that_spin_is_asked_before_they_count_as_endless() -> None:
    world = World(warps=1)
    machine = Remembering(
        world,
        _spinning_until_others_were_asked(),
    )
    machine.run()
    assert not world.kinds()


def test_an_interrupt_says_what_was_executed() -> None:
    world = World(warps=1)

    def interrupt(machine: Machine) -> None:
        raise KeyboardInterrupt

    machine = Machine(world, [lambda _: 1, interrupt])
    with pytest.raises(KeyboardInterrupt, match=r"^kernel\.py:1: emulating `block 1`$"):
        machine.run()
