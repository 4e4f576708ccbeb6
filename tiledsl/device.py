"""Where arguments in host memory run: `tile.device(...)` and the default.

A spec is "host" (alias "cpu"), "cuda", "cuda:1", "hip" or "hip:0", or "emulate:sm_80": a GPU that
this process emulates, instruction by instruction, with checks. Arrays that live on a device run
there, whatever this says. The default is the variable TILEDSL_DEVICE, else "host".
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Literal

from tiledsl.dialects.diagnostics import KernelError

EMULATE = "emulate"
_chosen: ContextVar[str | None] = ContextVar("tiledsl_device", default=None)
_SPEC = re.compile(r"(host|cpu|cuda|hip)(?::(\d+))?")


def normalize(spec: str) -> str:
    """Return the one spelling of a device: "host", "cuda:0", "hip:1", "emulate:sm_80".

    Raises:
        KernelError: It names no kind of device, or no chip that can be emulated.
    """
    if not isinstance(spec, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KernelError(
            f"expected the name of a device, found {spec!r}", hint='as "cuda:0", "host"'
        )
    kind, _, chip = spec.partition(":")
    if kind == EMULATE and chip:
        from tiledsl.targets.gpu.emulator.driver import text_of

        text_of(chip)
        return spec
    match = _SPEC.fullmatch(spec)
    if match is None or (match[2] is not None and match[1] not in ("cuda", "hip")):
        raise KernelError(
            f"expected a device, found {spec!r}",
            hint='a device is "host", "cuda", "cuda:1", "hip", "hip:0" or "emulate:CHIP", '
            'as "emulate:sm_80"',
        )
    if match[1] in ("cuda", "hip"):
        return f"{match[1]}:{match[2] or 0}"
    return "host" if match[1] == "cpu" else match[1]


@contextmanager
def device(
    spec: str,
    *,
    mode: Literal["lazy", "eager"] | None = None,
    findings: Literal["error", "warn"] | None = None,
    step_limit: int | None = None,
) -> Generator[None]:
    """Run kernels whose arrays are in host memory on `spec` within this block.

    Inputs are copied to the device and back around each launch. Blocks nest, and each thread and
    asynchronous task has its own.

    Args:
        spec: "host", "cuda", "cuda:1", "hip", "hip:0" or "emulate:CHIP".
        mode: Of an emulated device, when asynchronous operations take effect: "lazy" (the default,
            or what TILEDSL_EMULATE_MODE says), as late as the kernel's waits allow, so that a
            missing wait shows; or "eager", at once.
        findings: Of an emulated device, whether what a kernel does wrong is an "error" (the
            default; what it wrote is then lost) or makes it "warn".
        step_limit: Of an emulated device, how many basic blocks (pieces of code without a branch) a
            warp may execute before its loop counts as endless; the default is two million, or what
            TILEDSL_EMULATE_STEPS says. A loop in which nothing changes is found without it.

    Raises:
        KernelError: It names no kind of device, or the options do not go with it.
    """
    place = normalize(spec)
    options: dict[str, object] = {"mode": mode, "findings": findings, "step_limit": step_limit}
    given = {name: value for name, value in options.items() if value is not None}
    if given and not place.startswith(EMULATE):
        raise KernelError(f"{', '.join(given)}: expected an emulated device, found {spec!r}")
    token = _chosen.set(place)
    try:
        with _emulating(given) if given else nullcontext():
            yield
    finally:
        _chosen.reset(token)


@contextmanager
def _emulating(options: dict[str, object]) -> Generator[None]:
    from tiledsl.targets.gpu.emulator import settings

    if "mode" in options:
        settings.check_mode(options["mode"])
    if options.get("findings", "error") not in ("error", "warn"):
        found = options["findings"]
        raise KernelError(f'findings: expected "error" or "warn", found {found!r}')
    if "step_limit" in options:
        settings.check_step_limit(options["step_limit"])
    with settings.use(**options):
        yield


def current() -> str:
    """Return the device for arrays in host memory, normalized."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    return normalize(os.environ.get("TILEDSL_DEVICE") or "host")
