"""What is known of a tile of integers or pointers: runs, alignment and range, as plain numbers.

No MLIR here: `Facts` says what holds of one value, and functions combine facts as tile operations
combine values (`facts_arithmetic` has the operations on numbers, this module those on shapes).
Every claim is a proof; where there is none, the claim is the weakest one, 1.

Along each dimension a tile is cut into aligned blocks. All numbers are powers of two.

- `constancy` k: within an aligned block of k elements all are equal.
- `contiguity` c: within an aligned block of c elements each is the one before plus 1, in the
  arithmetic of the narrowest integer on the way. It may thus wrap inside a run of, say, i32
  indices that were extended to 64 bits, but never inside a naturally aligned part of a run: a part
  of g <= min(c, divisibility) elements begins at a multiple of g, where nothing can wrap.
- `divisibility` d: the first element of each such block of c is a multiple of d. A pointer's runs
  are of elements, its divisibility is of the address, in bytes.
- `divisor`: every element is a multiple of it (for scalars, the only alignment).
- `range`: bounds of every element, read as signed (a bool reads as 0 or 1); None for what is not an
  integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tiledsl.transforms.interval import Interval

MOST = 1 << 62
"""Divisibility of zero: no claim is larger."""


def power_of_two_in(value: int) -> int:
    """Return the largest power of two that divides `value`, at most `MOST`."""
    return min(value & -value, MOST) if value else MOST


@dataclass(frozen=True)
class Facts:
    """What holds of one value; see the module's docstring. Tuples have one entry a dimension."""

    shape: tuple[int, ...] = ()
    contiguity: tuple[int, ...] = ()
    divisibility: tuple[int, ...] = ()
    constancy: tuple[int, ...] = ()
    divisor: int = 1
    range: Interval | None = None
    step: int = 1
    """What the next element of a run is larger by: 1, or the bytes of a pointer's element."""

    @staticmethod
    def make(
        shape: tuple[int, ...],
        *,
        contiguity: Sequence[int] | None = None,
        divisibility: Sequence[int] | None = None,
        constancy: Sequence[int] | None = None,
        divisor: int = 1,
        range: Interval | None = None,
        step: int = 1,
    ) -> Facts:
        """Return facts with weak claims filled in and all claims brought into agreement.

        What follows from other claims is added: a known value is constant and has its divisor; a
        divisor of all elements divides the first ones; a run of ones leaves no common divisor but
        the step's.
        """
        ones = (1,) * len(shape)
        runs = tuple(contiguity or ones)
        starts = tuple(divisibility or ones)
        equal = tuple(constancy or ones)
        if range is not None and range.lo == range.hi:
            divisor = max(divisor, power_of_two_in(range.lo))
            runs, equal = ones, shape
        running = max(runs, default=1) > 1
        if running:
            divisor = min(divisor, step)
        elif shape:
            divisor = max(divisor, *starts)
        if range is not None and divisor > 1:
            range = range.multiples(divisor)
        return Facts(
            shape, runs, tuple(max(d, divisor) for d in starts), equal, divisor, range, step
        )

    @staticmethod
    def unknown(shape: tuple[int, ...], range: Interval | None = None, step: int = 1) -> Facts:
        """Return the facts that hold of any value."""
        return Facts.make(shape, range=range, step=step)

    @staticmethod
    def constant(value: int, shape: tuple[int, ...] = ()) -> Facts:
        """Return the facts of an integer, or of a tile full of it."""
        return Facts.make(shape, range=Interval.exactly(value))

    @property
    def rank(self) -> int:
        """How many dimensions the value has."""
        return len(self.shape)

    @property
    def value(self) -> int | None:
        """The integer that every element is, if that is known."""
        return None if self.range is None else self.range.value

    def starts(self, axis: int, block: int) -> int:
        """Return what divides the first elements of aligned blocks of `block` along `axis`."""
        d = self.divisibility[axis]
        return d if block >= self.contiguity[axis] else min(d, block * self.step)

    def aligned_run(self, axis: int) -> int:
        """Return the longest block along `axis` that runs and begins at a multiple of its size."""
        return min(self.contiguity[axis], max(1, self.divisibility[axis] // self.step))

    def with_range(self, range: Interval | None) -> Facts:
        """Return these facts with another range."""
        if range == self.range:
            return self
        if range is not None and range.lo == range.hi:
            return self._filled(range)
        return replace(self, range=range)

    def _filled(self, range: Interval | None) -> Facts:
        return Facts.make(
            self.shape,
            contiguity=self.contiguity,
            divisibility=self.divisibility,
            constancy=self.constancy,
            divisor=self.divisor,
            range=range,
            step=self.step,
        )

    def with_divisor(self, divisor: int) -> Facts:
        """Return these facts of a value whose elements `divisor` is also known to divide."""
        return replace(self, divisor=max(self.divisor, divisor))._filled(self.range)


def join(a: Facts, b: Facts) -> Facts:
    """Return what holds of a value that is one or the other, as a whole."""
    if a is b or a == b:
        return a
    runs = tuple(map(min, a.contiguity, b.contiguity))
    return Facts.make(
        a.shape,
        contiguity=runs,
        divisibility=[min(a.starts(i, c), b.starts(i, c)) for i, c in enumerate(runs)],
        constancy=tuple(map(min, a.constancy, b.constancy)),
        divisor=min(a.divisor, b.divisor),
        range=a.range.union(b.range) if a.range and b.range else None,
        step=a.step,
    )


def make_range(start: int, end: int) -> Facts:
    """Return the facts of start, start + 1, ..., end - 1."""
    size = end - start
    return Facts.make(
        (size,),
        contiguity=(power_of_two_in(size),),
        divisibility=(power_of_two_in(start) if start else MOST,),
        range=Interval(start, end - 1),
    )


def splat(scalar: Facts, shape: tuple[int, ...]) -> Facts:
    """Return the facts of a tile full of a scalar."""
    return Facts.make(
        shape, constancy=shape, divisor=scalar.divisor, range=scalar.range, step=scalar.step
    )


def expand_dims(a: Facts, axis: int) -> Facts:
    """Return the facts of `a` with a dimension of size 1 inserted before `axis`."""

    def insert(values: tuple[int, ...], one: int) -> tuple[int, ...]:
        return (*values[:axis], one, *values[axis:])

    return replace(
        a,
        shape=insert(a.shape, 1),
        contiguity=insert(a.contiguity, 1),
        divisibility=insert(a.divisibility, a.divisor),
        constancy=insert(a.constancy, 1),
    )


def broadcast(a: Facts, shape: tuple[int, ...]) -> Facts:
    """Return the facts of `a` with dimensions of size 1 repeated to `shape`."""
    constancy = [
        new if old == 1 else k for k, old, new in zip(a.constancy, a.shape, shape, strict=True)
    ]
    return replace(a, shape=shape, constancy=tuple(constancy))


def trans(a: Facts, order: Sequence[int]) -> Facts:
    """Return the facts of `a` with dimension i being its dimension order[i]."""

    def permute(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[d] for d in order)

    return replace(
        a,
        shape=permute(a.shape),
        contiguity=permute(a.contiguity),
        divisibility=permute(a.divisibility),
        constancy=permute(a.constancy),
    )


def stack(a: Facts, b: Facts) -> Facts:
    """Return the facts of two tiles joined along a new last dimension."""
    return replace(expand_dims(join(a, b), a.rank), shape=(*a.shape, 2))


def unstack(a: Facts) -> Facts:
    """Return the facts of either tile that a last dimension of size 2 is taken apart into."""
    return Facts.make(
        a.shape[:-1],
        contiguity=a.contiguity[:-1],
        divisibility=a.divisibility[:-1],
        constancy=a.constancy[:-1],
        divisor=a.divisor,
        range=a.range,
        step=a.step,
    )


def concatenate(a: Facts, b: Facts, axis: int) -> Facts:
    """Return the facts of two tiles one after the other along `axis`."""
    shape = tuple(2 * n if i == axis else n for i, n in enumerate(a.shape))
    return replace(join(a, b), shape=shape)


def reshape(a: Facts, shape: tuple[int, ...]) -> Facts:
    """Return the facts of the same elements, in row-major order, under another shape."""
    contiguity, divisibility, constancy = [1] * len(shape), [1] * len(shape), [1] * len(shape)
    for old, new in _regrouped(a.shape, shape):
        run, start, equal = _flattened(a, old)
        inner = 1
        for axis in reversed(new):
            size = shape[axis]
            constancy[axis] = min(size, max(1, equal // inner))
            if inner == 1:
                contiguity[axis] = min(run, size)
                divisibility[axis] = start if size >= run else min(start, size * a.step)
            inner *= size
    return Facts.make(
        shape,
        contiguity=contiguity,
        divisibility=divisibility,
        constancy=constancy,
        divisor=a.divisor,
        range=a.range,
        step=a.step,
    )


def _regrouped(old: tuple[int, ...], new: tuple[int, ...]) -> Iterable[tuple[list[int], list[int]]]:
    """Yield the finest groups of dimensions that hold the same elements in both shapes."""
    i, j = len(old), len(new)
    while i or j:
        olds: list[int] = []
        news: list[int] = []
        size_old = size_new = 1
        while not olds or not news or size_old != size_new:
            if (size_old <= size_new and i) or not j:
                if not i:
                    break
                i -= 1
                olds.insert(0, i)
                size_old *= old[i]
            else:
                j -= 1
                news.insert(0, j)
                size_new *= new[j]
        yield olds, news


def _flattened(a: Facts, axes: list[int]) -> tuple[int, int, int]:
    """Return contiguity, divisibility and constancy of dimensions `axes` flattened into one."""
    kept = [axis for axis in axes if a.shape[axis] > 1]
    if not kept:
        return 1, a.divisor, 1
    last = kept[-1]
    equal = 1
    for axis in reversed(kept):
        equal *= a.constancy[axis]
        if a.constancy[axis] != a.shape[axis]:
            break
    return a.contiguity[last], a.divisibility[last], equal


def hinted(
    a: Facts,
    contiguity: Sequence[int] | None,
    divisibility: Sequence[int] | None,
    constancy: Sequence[int] | None,
) -> Facts:
    """Return the facts of `a` with the author's word added, which is taken as it is.

    A list has one number a dimension; a scalar's divisibility may be a list of one.
    """
    if not a.shape:
        return a.with_divisor(power_of_two_in(divisibility[0])) if divisibility else a

    def strengthened(known: tuple[int, ...], said: Sequence[int] | None) -> list[int]:
        return [max(k, power_of_two_in(s)) for k, s in zip(known, said or known, strict=True)]

    return Facts.make(
        a.shape,
        contiguity=list(map(min, strengthened(a.contiguity, contiguity), a.shape)),
        divisibility=strengthened(a.divisibility, divisibility),
        constancy=list(map(min, strengthened(a.constancy, constancy), a.shape)),
        divisor=a.divisor,
        range=a.range,
        step=a.step,
    )


def reduced(a: Facts, axis: int, range: Interval | None) -> Facts:
    """Return what holds of any combination of elements along `axis`."""
    shape = a.shape[:axis] + a.shape[axis + 1 :]
    constancy = a.constancy[:axis] + a.constancy[axis + 1 :]
    return Facts.make(shape, constancy=constancy, range=range)
