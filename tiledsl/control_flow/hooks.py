"""What rewritten code calls: each function here stands for one construct of `rewrite`.

Statements have objects of their own (`Branch`, `ForLoop`, `WhileLoop`); expressions nest like
calls, so those being evaluated lie on a stack of the builder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.control_flow.branches import Branch, Lazy, condition_of, no_rebinding
from tiledsl.control_flow.calls import call
from tiledsl.control_flow.loops import ForLoop, Loop, WhileLoop
from tiledsl.control_flow.trees import UNSET
from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import unwrap
from tiledsl.language import casts, elementwise
from tiledsl.language.builder import current
from tiledsl.language.value import Value, build_all

# --- statements ----------------------------------------------------------------------------------


def branch(
    test: object,
    names: Sequence[str],
    after: Sequence[str],
    read: Sequence[str],
    env: Mapping[str, Any],
) -> Branch:
    """Begin an `if` statement."""
    return Branch(unwrap(test), names, after, read, env)


def for_loop(
    iterable: object,
    targets: Sequence[str],
    stop: str | None,
    names: Sequence[str],
    needed: Sequence[str],
    read: Sequence[str],
    mutated: Sequence[str],
    env: Mapping[str, Any],
) -> ForLoop:
    """Begin a `for` statement."""
    return ForLoop(iterable, targets, stop, names, needed, read, mutated, env)


def while_loop(
    names: Sequence[str],
    needed: Sequence[str],
    read: Sequence[str],
    mutated: Sequence[str],
    env: Mapping[str, Any],
) -> WhileLoop:
    """Begin a `while` statement."""
    return WhileLoop(names, needed, read, mutated, env)


def known_true(loop: Loop, flag: object) -> bool:
    """Return whether a flag ends a loop at compile time."""
    return flag is True and not loop.run_time


def depth() -> int:
    """Return how many regions are open."""
    return current().depth


def rewind(to: int) -> None:
    """Drop the regions left open by an exception that the kernel caught."""
    current().rewind(to)


def leave(loop: Loop, word: str) -> None:
    """Check a `break` or `continue` that stayed plain Python.

    Raises:
        KernelError: It would have to happen at run time.
    """
    if loop.run_time and word == "break":
        raise KernelError("expected no `break` of a run-time loop in a `with` or `try`")
    if current().depth != loop.depth:
        raise KernelError(f"expected no `{word}` here under a run-time condition")


def leave_function(depth: int, value: object, word: str) -> object:
    """Check a `return` or `yield` that stayed plain Python; returns its value.

    Raises:
        KernelError: It stands in a run-time loop or branch.
    """
    if current().depth != depth:
        raise KernelError(
            f"expected no `{word}` inside {current().region.words}",
            hint="set a variable there and return it afterwards" if word == "return" else None,
        )
    return value


def assert_fails(test: object) -> bool:
    """Return whether an `assert` is to report: it fails now, or is to be checked at run time."""
    builder = current()
    test = unwrap(test)
    if not isinstance(test, Value):
        builder.pending.append(None)
        return not test
    builder.pending.append(casts.truth(test))
    return builder.options.debug


def assertion(message: object) -> None:
    """Report an `assert` that fails at compile time, or make the check of run time.

    Raises:
        KernelError: It fails at compile time.
    """
    builder = current()
    condition = builder.pending.pop()
    words = "assertion failed" if message is None else f"assertion failed: {message}"
    if not isinstance(condition, Value):
        raise KernelError(words)
    span = builder.span()
    where = f"{span.file}:{span.line}: " if span else ""
    build_all(tile.AssertOp, condition, None, types=[], message=where + words)


# --- expressions ---------------------------------------------------------------------------------


def hold(value: object) -> object:
    """Keep the middle of a chained comparison for the comparison after it."""
    current().held = value
    return value


def held() -> object:
    """Return what `hold` kept."""
    return current().held


def not_(value: object) -> object:
    """Return `not value`; of a tile, element by element."""
    value = unwrap(value)
    return elementwise.logical_not(value) if isinstance(value, Value) else not value


def and_left(value: object, truth: bool, rebinds: bool) -> bool:
    """Take the left operand of `and`; returns whether to evaluate the right one."""
    return _left(value, truth, rebinds, decides=False)


def or_left(value: object, truth: bool, rebinds: bool) -> bool:
    """Take the left operand of `or`; returns whether to evaluate the right one."""
    return _left(value, truth, rebinds, decides=True)


class _Both:
    """`and` or `or` whose left operand is of run time, its right one being evaluated.

    Attributes:
        left: The left operand: a bool where only the truth of the whole matters.
        truth: Whether only that matters.
        decides: The truth of the left operand that makes the right one superfluous.
        lazy: The choice at run time; None for tiles, which combine element by element.
    """

    def __init__(self, left: Value, truth: bool, decides: bool) -> None:
        self.left = casts.truth(left) if truth or left.shape else left
        self.truth = truth
        self.decides = decides
        self.lazy = None if left.shape else Lazy(condition_of(left))

    def finish(self, right: object) -> object:
        """Return the whole."""
        if self.lazy is None:
            other = unwrap(right)
            other = casts.truth(other) if isinstance(other, Value) else bool(other)
            combine = elementwise.bit_or if self.decides else elementwise.bit_and
            return combine(self.left, other)
        if self.truth:
            right = condition_of(right) if isinstance(right, Value) else bool(right)
        self.lazy.end(right)
        self.lazy.begin()
        # Where the right operand is not evaluated, the truth of the left one is known.
        self.lazy.end(self.decides if self.left.dtype.is_bool() else self.left)
        if self.decides:
            self.lazy.sides.reverse()
        return self.lazy.merged("`or`" if self.decides else "`and`")


def _left(value: object, truth: bool, rebinds: bool, decides: bool) -> bool:
    value = unwrap(value)
    builder = current()
    if not isinstance(value, Value):
        builder.pending.append(value)
        return bool(value) != decides
    no_rebinding(rebinds)
    both = _Both(value, truth, decides)
    builder.pending.append(both)
    if both.lazy is not None:
        both.lazy.begin()
    return True


def lazy_right(value: object) -> object:
    """Take the right operand of `and` or `or`."""
    pending = current().pending
    left = pending[-1]
    pending[-1] = left.finish(unwrap(value)) if isinstance(left, _Both) else value
    return None


def lazy_end(_: object) -> object:
    """Return the value of `and` or `or`."""
    return current().pending.pop()


def choice(test: object, rebinds: bool) -> bool:
    """Take the condition of a conditional expression; returns whether to evaluate `then`."""
    test = unwrap(test)
    if isinstance(test, Value):
        no_rebinding(rebinds)
        lazy = Lazy(condition_of(test))
        lazy.begin()
        current().pending.append(lazy)
        return True
    current().pending.append(bool(test))
    return bool(test)


def choice_then(value: object) -> object:
    """Take the first value of a conditional expression."""
    lazy = current().pending[-1]
    if isinstance(lazy, Lazy):
        lazy.end(unwrap(value))
    return value


def choice_otherwise() -> bool:
    """Return whether to evaluate the second value of a conditional expression."""
    lazy = current().pending[-1]
    if isinstance(lazy, Lazy):
        lazy.begin()
        return True
    return not lazy


def choice_else(value: object) -> object:
    """Take the second value of a conditional expression."""
    return choice_then(value)


def choice_end(first: object, second: object) -> object:
    """Return the value of a conditional expression."""
    lazy = current().pending.pop()
    if isinstance(lazy, Lazy):
        return lazy.merged("a conditional expression")
    return first if lazy else second


__all__ = ["UNSET", "call"]
