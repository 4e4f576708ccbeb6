"""Where arguments in host memory run: `tile.device(...)` and the default.

A spec is "host" (alias "cpu"), "cuda", "cuda:1", "hip" or "hip:0". Arrays that live on a device run
there, whatever this says. The default is the variable TILEDSL_DEVICE, else "host".
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tiledsl.dialects.diagnostics import KernelError

_chosen: ContextVar[str | None] = ContextVar("tiledsl_device", default=None)
_SPEC = re.compile(r"(host|cpu|cuda|hip)(?::(\d+))?")


def normalize(spec: str) -> str:
    """Return the one spelling of a device: "host", "cuda:0", "hip:1".

    Raises:
        KernelError: It names no kind of device.
    """
    match = _SPEC.fullmatch(spec)
    if match is None or (match[2] is not None and match[1] not in ("cuda", "hip")):
        raise KernelError(
            f"expected a device, found {spec!r}",
            hint='a device is "host", "cuda", "cuda:1", "hip" or "hip:0"',
        )
    if match[1] in ("cuda", "hip"):
        return f"{match[1]}:{match[2] or 0}"
    return "host" if match[1] == "cpu" else match[1]


@contextmanager
def device(spec: str) -> Generator[None]:
    """Run kernels whose arrays are in host memory on `spec` within this block.

    Inputs are copied to the device and back around each launch. Blocks nest, and each thread and
    asynchronous task has its own.

    Args:
        spec: "host", "cuda", "cuda:1", "hip" or "hip:0".

    Raises:
        KernelError: It names no kind of device.
    """
    token = _chosen.set(normalize(spec))
    try:
        yield
    finally:
        _chosen.reset(token)


def current() -> str:
    """Return the device for arrays in host memory, normalized."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    return normalize(os.environ.get("TILEDSL_DEVICE") or "host")
