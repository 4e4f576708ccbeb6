"""Run a few lines of PTX in the emulator: what the tests of its families share.

`run` wraps a body into a kernel whose parameters are the arrays' addresses, `%a0`, `%a1`, ..., and
returns the arrays as the kernel left them with what was found. The body may use 64 registers of each
of `%p`, `%h`, `%r`, `%d`, `%f`, `%g` (pred, b16, b32, b64, f32, f64), and finds its thread in `%t`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Cohort, Mode
from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.findings import Finding, Findings, Kind
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.nvptx.emulator import load
from tiledsl.targets.nvptx.emulator.machine import Machine

_REGISTERS = {"p": "pred", "h": "b16", "r": "b32", "d": "b64", "f": "f32", "g": "f64"}


@dataclass
class Outcome:
    """What a kernel left: its arrays, its findings, what it cost."""

    arrays: list[NDArray[Any]]
    findings: Sequence[Finding]
    counters: Counters

    @property
    def kinds(self) -> set[Kind]:
        return {one.kind for one in self.findings}


def kernel(body: str, arrays: int, *, chip: str, shared: int = 0) -> str:
    """Return a module whose kernel `k` executes `body`."""
    parameters = ",\n".join(f".param .u64 k_param_{i}" for i in range(arrays))
    registers = "\n".join(f".reg .{type_} %{name}<64>;" for name, type_ in _REGISTERS.items())
    loads = "\n".join(f"ld.param.u64 %a{i}, [k_param_{i}];" for i in range(arrays))
    static = f".shared .align 1024 .b8 s[{shared}];" if shared else ""
    return f"""
.version 8.7
.target {chip}
.address_size 64
{static}
.visible .entry k(
{parameters}
)
{{
{registers}
.reg .b64 %a<16>;
.reg .b32 %t;
{loads}
mov.u32 %t, %tid.x;
{body}
ret;
}}
"""


def run(
    body: str,
    *arrays: NDArray[Any],
    chip: str = "sm_80",
    threads: int = 32,
    blocks: int = 1,
    shared: int = 0,
    mode: Mode = Mode.EAGER,
    text: str | None = None,
    describe: Callable[[list[int]], None] | None = None,
) -> Outcome:
    """Execute a body once for copies of the arrays; see the module's docstring.

    `describe` is told the arrays' addresses before their contents are copied.
    """
    memory = GlobalMemory()
    addresses = [memory.allocate(array.nbytes, written=True) for array in arrays]
    if describe is not None:
        describe(addresses)
    for array, address in zip(arrays, addresses, strict=True):
        memory.bytes_at(address, array.nbytes)[:] = (
            np.ascontiguousarray(array).view(np.uint8).ravel()
        )
    machine = begin(
        text or kernel(body, len(arrays), chip=chip, shared=shared), chip, memory, addresses,
        threads=threads, blocks=blocks, mode=mode,
    )  # fmt: skip
    machine.run()
    cohort = machine.cohort
    assert cohort.counters is not None
    left = [
        memory.bytes_at(address, array.nbytes).copy().view(array.dtype).reshape(array.shape)
        for address, array in zip(addresses, arrays, strict=True)
    ]
    return Outcome(left, cohort.findings.all(), cohort.counters)


def begin(
    text: str,
    chip: str,
    memory: GlobalMemory,
    addresses: Sequence[int] = (),
    *,
    threads: int = 32,
    blocks: int = 1,
    mode: Mode = Mode.EAGER,
) -> Machine:
    """Return the machine of a kernel `k` that has not run yet."""
    program = load(text, "k", chip, memory)
    programs = np.zeros((blocks, 3), np.int64)
    programs[:, 0] = np.arange(blocks)
    cohort = Cohort(
        (blocks, 1, 1), programs, threads, 32, np.array(addresses, np.uint64).tobytes(), 0,
        memory, Findings(), None, mode, program.atomic,
    )  # fmt: skip
    cohort.counters = Counters(len(program.instructions), program.rules, cohort.warp_of)
    return program.machine(cohort)


def in_clusters(text: str, blocks: int) -> str:
    """Return a kernel whose clusters have some number of blocks."""
    return text.replace("\n)\n{", f"\n)\n.reqnctapercluster {blocks}, 1, 1\n{{", 1)
