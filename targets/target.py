"""What a target is: what takes `tile` IR to code for its chips, and a driver to run it.

The modules `tiledsl.targets.host.target`, `.nvptx.target` and `.amdgpu.target` satisfy `Target`
(not the packages themselves: a package's `pipeline` and `driver` are its modules of those names,
once somebody imports them). They import what they need when it is asked for. Everything but
`driver` works on any machine, with no device and no vendor's library. `find` turns the name that a
user writes into a target and a chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.driver import Driver, Resources
from tiledsl.transforms.map_spec import MapSpec

if TYPE_CHECKING:
    from mlir import ir

    from tiledsl.transforms.run import Step


@dataclass(frozen=True)
class Options:
    """What a user may choose about one compilation; the defaults are what most kernels want.

    Attributes:
        num_warps: Warps (waves) a program; a power of two.
        num_stages: Buffers of a pipelined loop: 1 turns pipelining off.
        num_ctas: Thread blocks that run a program together, as a cluster, each with a part of its
            tiles; a power of two up to 8. Where the chip has no clusters one block runs it.
        fp_contract: Whether a * b + c may round once.
        fast_math: Whether division and functions may use the chip's approximations.
        ptxas_options: Extra options for ptxas and the driver's compiler, as "-O3 -v".
        max_registers: Limit of registers a thread (NVIDIA), or None.
        debug: Whether `device_assert` checks are compiled in.
    """

    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    fp_contract: bool = True
    fast_math: bool = False
    ptxas_options: str = ""
    max_registers: int | None = None
    debug: bool = False


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel, ready for the target's driver.

    Attributes:
        texts: Every level below MLIR by name: "llvm", then "ptx" and "cubin", "amdgcn" and "hsaco",
            or "object".
        binary: What `Driver.load` takes.
        entry: The kernel's symbol.
        kinds: The arguments' kinds, as `tiledsl.targets.arguments` names them.
        shared_bytes: Dynamic shared memory a program, in bytes (host: scratch).
        threads: Threads a program (host: 1).
        resources: Registers, spills and such, where the tool chain tells.
        tensor_maps: What the launcher makes for the last arguments, those of kind "tensormap".
        overlaps: Whether the kernel itself waits for the launch before it, which may then still be
            under way when this one begins.
        cluster: Thread blocks that run a program together: the launcher starts so many for each.
    """

    texts: dict[str, str | bytes]
    binary: bytes
    entry: str
    kinds: tuple[str, ...]
    shared_bytes: int
    threads: int
    resources: Resources | None = None
    tensor_maps: tuple[MapSpec, ...] = ()
    overlaps: bool = False
    cluster: int = 1


class Target(Protocol):
    """One machine family; see the module's docstring."""

    NAME: str

    def chips(self) -> Sequence[str]:
        """Return the names of the chips that it compiles for."""
        ...

    def pipeline(self, chip: str, options: Options) -> Sequence[Step]:
        """Return the passes from the `tile` level to the `llvm` level."""
        ...

    def assemble(self, module: ir.Module, chip: str, options: Options) -> Artifact:
        """Turn a module at the `llvm` level into code."""
        ...

    def driver(self) -> Driver:
        """Return the driver, without touching hardware."""
        ...


_PACKAGES = ("host", "nvptx", "amdgpu")


@cache
def target(name: str) -> Target:
    """Return the target called `name`: "host", "nvptx" or "amdgpu"."""
    return cast("Target", import_module(f"tiledsl.targets.{name}.target"))


def find(name: str) -> tuple[Target, str]:
    """Return the target and chip that a user means by `name`, as "host", "sm_90a" or "gfx942".

    Raises:
        KernelError: No target has such a chip; the message lists all there are.
    """
    if name in ("host", "cpu"):
        return target("host"), "host"
    known = [chip for package in _PACKAGES for chip in target(package).chips()]
    if name not in known:
        raise KernelError(f"expected a target among {', '.join(known)}, found {name!r}")
    owner = next(p for p in _PACKAGES if name in target(p).chips())
    return target(owner), name
