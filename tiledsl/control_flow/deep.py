"""Room for deep recursion: trees of expressions with thousands of terms are walked recursively.

`a + b + c + ...` is a tree as deep as it has terms, and Python's recursion limit of 1000 frames is
reached at a few hundred. What Python itself could compile, a kernel may hold.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_STACK_BYTES = 512 << 20
"""Of the thread; memory is taken as it is used."""
_FRAMES = 200_000
_T = TypeVar("_T")
_one_at_a_time = threading.Lock()


def with_room(function: Callable[[], _T]) -> _T:
    """Call `function`, which has no effect until it is done, again with more room if it needs it.

    Raises:
        RecursionError: It needs still more.
    """
    try:
        return function()
    except RecursionError:
        return _on_large_stack(function)


def _on_large_stack(function: Callable[[], _T]) -> _T:
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised in the thread that asked
            errors.append(error)

    # The limit is the whole process's; other threads have no use for it, and it does them no harm.
    with _one_at_a_time:
        size, frames = threading.stack_size(_STACK_BYTES), sys.getrecursionlimit()
        thread = threading.Thread(target=run)
        try:
            sys.setrecursionlimit(max(frames, _FRAMES))
            thread.start()
            thread.join()
        finally:
            threading.stack_size(size)
            sys.setrecursionlimit(frames)
    if errors:
        raise errors[0]
    return results[0]
