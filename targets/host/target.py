"""The CPU: what `tiledsl.targets.target.Target` asks for, each part loaded when used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiledsl.targets.driver import Driver
from tiledsl.targets.target import Artifact, Options

if TYPE_CHECKING:
    from mlir import ir

    from tiledsl.transforms.run import Step

NAME: str = "host"


def chips() -> Sequence[str]:
    """Return the one chip: this machine's processor, whichever it is."""
    return ("host",)


def pipeline(chip: str, options: Options) -> Sequence[Step]:
    """Return the passes from the `tile` level to the `llvm` level."""
    from tiledsl.targets.host.cpu import host_cpu
    from tiledsl.targets.host.pipeline import passes

    return passes(options, host_cpu())


def assemble(module: ir.Module, chip: str, options: Options) -> Artifact:
    """Turn a module at the `llvm` level into an object for this process."""
    from tiledsl.targets.host.assemble import assemble as assemble_object

    return assemble_object(module)


def driver() -> Driver:
    """Return the process's driver."""
    from tiledsl.targets.host.driver import driver as host_driver

    return host_driver()
