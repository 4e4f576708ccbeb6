"""Run a list of passes, check the contract after each, and let an observer see the IR.

A pass is a function `(module) -> None` that changes the module in place; its options are bound with
`functools.partial`. Its name is the function's. A pipeline is a list of `Step`s: a pass and the
level that holds after it. Targets write theirs in `pipeline.py`; there is no registry.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.dialects.contracts import Level
from tiledsl.dialects.diagnostics import CompilerBug, KernelError

Pass = Callable[[ir.Module], object]

MOST_NESTED = 500
"""Loops and branches within each other that a module may have."""
_FRAMES_A_NEST = 20


@dataclass(frozen=True)
class Step:
    """A pass and the level that the module is at after it."""

    run: Pass
    level: Level

    @property
    def name(self) -> str:
        """The pass's name."""
        return pass_name(self.run)

    @property
    def summary(self) -> str:
        """The first line of its module's docstring; of its own where `upstream` made it."""
        run = _function(self.run)
        text = (run if run.__module__ == __name__ else sys.modules[run.__module__]).__doc__ or ""
        return text.strip().partition("\n")[0]


def pass_name(run: Pass) -> str:
    """Return the name of the function under any partial application."""
    return str(_function(run).__name__)


def _function(run: Pass) -> Any:
    """Return the function under any partial application."""
    inner: Any = run
    while isinstance(inner, partial):
        inner = inner.func
    return inner


class Observer(Protocol):
    """Sees the module after each pass: dumps, timing and the viewer are observers."""

    def __call__(self, name: str, module: ir.Module, seconds: float) -> None:
        """Take note of the module as the pass `name` left it after `seconds`."""


@dataclass
class Timings:
    """An observer that keeps how long each pass took."""

    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def __call__(self, name: str, module: ir.Module, seconds: float) -> None:
        """Keep one pass's time."""
        self.seconds.append((name, seconds))


def run(module: ir.Module, steps: Sequence[Step], observers: Sequence[Observer] = ()) -> None:
    """Run `steps` on `module` in place, verifying after each.

    Raises:
        KernelError: A pass found a mistake of the author's.
        CompilerBug: A pass failed or broke its contract; the message begins with its name.
    """
    with _room_for_nests():
        _run(module, steps, observers)


@contextmanager
def _room_for_nests() -> Generator[None]:
    """Let passes recurse into nests of loops and branches: a few frames of theirs for each.

    A kernel has at most `MOST_NESTED` of them within each other, see the front end's builder.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + _FRAMES_A_NEST * MOST_NESTED)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _run(module: ir.Module, steps: Sequence[Step], observers: Sequence[Observer]) -> None:
    for step in steps:
        start = time.perf_counter()
        try:
            with module.context, ir.Location.unknown():
                step.run(module)
        except (KernelError, CompilerBug):
            raise
        except Exception as error:
            raise CompilerBug(f"in {step.name}: {type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - start
        try:
            contracts.check(module, step.level)
        except CompilerBug as bug:
            raise CompilerBug(f"after {step.name}: {bug.message}") from None
        for observer in observers:
            observer(step.name, module, seconds)


def upstream(pipeline: str, name: str) -> Pass:
    """Return a pass that runs MLIR's own `pipeline`, as "canonicalize,cse", under our `name`."""
    from mlir.passmanager import PassManager

    def run_upstream(module: ir.Module) -> None:
        manager: Any = PassManager.parse(f"builtin.module({pipeline})", module.context)
        manager.run(module.operation)

    run_upstream.__name__ = name
    run_upstream.__doc__ = f"MLIR's own: {pipeline}."
    return run_upstream
