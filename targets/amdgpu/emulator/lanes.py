"""The lanes that an access to memory is for, and the vector registers it reads and writes in them.

Memory takes one element a lane, of active lanes only. `Lanes` says which: all of all waves (the
common case, in which registers are read and written whole), or the flat numbers (wave x wave size +
lane) of those that are active. Values of one access are (lanes, words), in that order of lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine
    from tiledsl.targets.gpu.emulator.cohort import Mask

Array = NDArray[Any]
Words = NDArray[Any]
"""(lanes, words): what an access moves."""

POISON = 0xFFFFFFFF
"""What registers hold that a load has yet to write: a NaN in every format, nobody's address."""


class Lanes(NamedTuple):
    """Which lanes.

    Attributes:
        where: Their flat numbers; None for all of all waves.
        threads: The flat thread of each.
    """

    where: NDArray[np.intp] | None
    threads: NDArray[np.intp]

    def pick(self, values: Array) -> Array:
        """Return these lanes' values of a (waves, lanes) array."""
        flat = values.reshape(-1)
        return flat if self.where is None else flat[self.where]

    def spread(self, values: Array, wave_size: int) -> Array:
        """Return one value a wave, (waves,) or (1,), as one a lane."""
        if len(values) == 1:
            return np.broadcast_to(values, (len(self.threads),))
        if self.where is None:
            return np.repeat(values, wave_size)
        return values[self.where // wave_size]

    def of(self, waves: Mask | None, wave_size: int) -> Array | None:
        """Return which of these lanes belong to waves in a mask, as a mask; None for all."""
        if waves is None:
            return None
        if self.where is None:
            return np.repeat(waves, wave_size)
        return waves[self.where // wave_size]

    def some(self, chosen: Array) -> Lanes:
        """Return those of these lanes that a mask chooses."""
        where = np.flatnonzero(chosen) if self.where is None else self.where[chosen]
        return Lanes(where, self.threads[chosen])


def active(machine: Machine) -> Lanes:
    """Return the active lanes."""
    if machine.lanes_full:
        return Lanes(None, machine.thread_of.reshape(-1))
    where = np.flatnonzero(machine.lanes)
    return Lanes(where, machine.thread_of.reshape(-1)[where])


def get_words(machine: Machine, lanes: Lanes, first: int, count: int) -> Words:
    """Return vector registers `first` and the following, (lanes, count), as a copy."""
    rows = machine.vgpr[first : first + count].reshape(count, -1)
    if lanes.where is not None:
        rows = rows[:, lanes.where]
    return np.array(rows.T, order="C")


def put_words(machine: Machine, lanes: Lanes, first: int, count: int, words: Words | None) -> None:
    """Write vector registers `first` and the following; None poisons them."""
    rows = machine.vgpr[first : first + count]
    if lanes.where is None:
        shape = (machine.waves, machine.wave_size, count)
        rows[:] = POISON if words is None else words.reshape(shape).transpose(2, 0, 1)
        return
    # A view: the array of registers is contiguous.
    rows.reshape(count, -1)[:, lanes.where] = POISON if words is None else words.T


def put_half(machine: Machine, lanes: Lanes, register: int, half: int, words: Words | None) -> None:
    """Write one half of a vector register, from (lanes, 1) or (lanes,) values; None poisons it."""
    view = machine.v_u16[2 * register + half]
    if words is None:
        values: Array = np.full(len(lanes.threads), POISON & 0xFFFF, np.uint16)
    else:
        values = words.reshape(-1).astype(np.uint16)
    if lanes.where is None:
        view[:] = values.reshape(view.shape)
        return
    view[lanes.where // machine.wave_size, lanes.where % machine.wave_size] = values


def address64(machine: Machine, lanes: Lanes, register: int) -> NDArray[np.uint64]:
    """Return the 64-bit addresses that two vector registers hold."""
    both = np.empty((len(lanes.threads), 2), np.uint32)
    both[:, 0] = lanes.pick(machine.vgpr[register])
    both[:, 1] = lanes.pick(machine.vgpr[register + 1])
    return both.view(np.uint64)[:, 0]


def as_words(bits: Array) -> Words:
    """Return elements of 4 or 8 bytes, (lanes,), as words, (lanes, words)."""
    return np.ascontiguousarray(bits).view(np.uint32).reshape(len(bits), bits.itemsize // 4)


def as_bits(words: Words) -> Array:
    """Return one or two words a lane, (lanes, words), as one unsigned element."""
    return np.ascontiguousarray(words).view(f"u{4 * words.shape[1]}")[:, 0]
