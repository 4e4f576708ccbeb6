"""How emulated launches of this thread or task run: what `tile.device` and `tile.emulate` choose.

The launch path knows no emulator, so what it has no argument for travels beside it in a context
variable: the mode, what findings do, what the arrays are called, and who wants a report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.gpu.emulator.cohort import STEP_LIMIT

if TYPE_CHECKING:
    from tiledsl.targets.gpu.emulator.memory import Named
    from tiledsl.targets.gpu.emulator.report import Report

ModeName = Literal["lazy", "eager"]
OnFindings = Literal["error", "warn", "report"]

MODE_VARIABLE = "TILEDSL_EMULATE_MODE"
PROCESSES_VARIABLE = "TILEDSL_EMULATE_PROCESSES"
STEPS_VARIABLE = "TILEDSL_EMULATE_STEPS"


@dataclass(frozen=True)
class Settings:
    """What a launch has no argument for.

    Attributes:
        mode: When asynchronous operations take effect: "lazy", as late as the kernel's waits allow,
            or "eager", at once. None: as TILEDSL_EMULATE_MODE says, else "lazy".
        findings: Whether they raise a `KernelError`, warn, or only go into the report.
        names: The arrays of the launch.
        uninitialized: Parameters whose arrays count as never written.
        step_limit: How many basic blocks a warp may execute before its loop counts as endless.
            None: as TILEDSL_EMULATE_STEPS says, else `cohort.STEP_LIMIT`.
        report: Gets what the launch cost; None where nobody asked, and nothing is counted.
    """

    mode: ModeName | None = None
    findings: OnFindings = "error"
    names: Sequence[Named] = ()
    uninitialized: Collection[str] = ()
    step_limit: int | None = None
    report: Callable[[Report], None] | None = None


_DEFAULT = Settings()
_current: ContextVar[Settings] = ContextVar("tiledsl_emulator", default=_DEFAULT)


def current() -> Settings:
    """Return the settings of this thread or task."""
    return _current.get()


@contextmanager
def use(**changes: Any) -> Generator[None]:
    """Change some settings within this block."""
    token = _current.set(replace(_current.get(), **changes))
    try:
        yield
    finally:
        _current.reset(token)


def check_mode(mode: object, name: str = "mode") -> ModeName:
    """Return a mode, or raise a `KernelError` that lists them."""
    if mode == "lazy":
        return "lazy"
    if mode == "eager":
        return "eager"
    raise KernelError(f'{name}: expected "lazy" or "eager", found {mode!r}')


def current_mode() -> ModeName:
    """Return the mode that a launch runs in now."""
    chosen = _current.get().mode
    if chosen is not None:
        return chosen
    return check_mode(os.environ.get(MODE_VARIABLE) or "lazy", MODE_VARIABLE)


def processes() -> int:
    """Return how many processes one launch may use: TILEDSL_EMULATE_PROCESSES, else all cores."""
    chosen = _positive(PROCESSES_VARIABLE)
    if chosen is not None:
        return chosen
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def check_step_limit(limit: object) -> int:
    """Return a limit of steps, or raise a `KernelError`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise KernelError(f"step_limit: expected a positive integer, found {limit!r}")
    return limit


def current_step_limit() -> int:
    """Return how many basic blocks a warp of a launch may execute now."""
    chosen = _current.get().step_limit
    return chosen or _positive(STEPS_VARIABLE) or STEP_LIMIT


def _positive(variable: str) -> int | None:
    """Return the number in a variable of the environment; None where there is none."""
    chosen = os.environ.get(variable)
    if not chosen:
        return None
    if not chosen.isdecimal() or int(chosen) < 1:
        raise KernelError(f"{variable}: expected a positive integer, found {chosen!r}")
    return int(chosen)
