"""Kernels whose memory traffic a profiler counts on a GPU and the emulator counts in its report.

    ncu --csv --page raw --metrics ... python -m tests.kernels.profiled_kernels

launches each once on the CUDA device. Beside five kernels of the language there are kernels of a
few lines of PTX that access shared memory with every width and stride, one rule a kernel.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import tiledsl as tile
from examples import ex01_vector_add, ex04_matmul
from tests.kernels.good_kernels import softmax_row
from tests.targets.nvptx.emulator.on_device import run_text
from tests.targets.nvptx.emulator.running import kernel
from tiledsl.targets.driver import Driver
from tiledsl.targets.gpu.emulator import driver as emulator
from tiledsl.targets.gpu.emulator import settings
from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.program import Instruction
from tiledsl.targets.nvptx.driver import driver as cuda

CHIP = "sm_90a"


@tile.jit
def copy_strided(x, out, n, STRIDE: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i * STRIDE, mask=i < n), mask=i < n)


@tile.jit
def transpose(x, out, rows, columns, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    j = tile.program_id(1) * BLOCK + tile.arange(0, BLOCK)
    block = tile.load(x + i[:, None] * columns + j[None, :])
    tile.store(out + j[:, None] * rows + i[None, :], tile.trans(block))


def _add() -> None:
    x = np.arange(100_000, dtype=np.float32)
    ex01_vector_add.vector_add(x, x)


def _copy() -> None:
    x, out = np.arange(17 * 5000, dtype=np.float32), np.zeros(5000, np.float32)
    copy_strided[tile.cdiv(5000, 512),](x, out, 5000, STRIDE=17, BLOCK=512)


def _transpose() -> None:
    x = np.arange(256 * 512, dtype=np.float32).reshape(256, 512)
    transpose[4, 8](x, np.zeros((512, 256), np.float32), 256, 512, BLOCK=64)


def _multiply() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=size).astype(np.float16) for size in ((512, 256), (256, 384)))
    ex04_matmul.multiply(a, b)


def _softmax() -> None:
    x = np.random.default_rng(0).normal(size=(123, 781)).astype(np.float32)
    softmax_row[123,](x, np.empty_like(x), 781, 781, BLOCK=1024, num_warps=4)


KERNELS: dict[str, Callable[[], None]] = {
    "add": _add,
    "copy_strided": _copy,
    "transpose": _transpose,
    "matmul": _multiply,
    "softmax_row": _softmax,
}
"""Launches, by the kernel's name."""


# --- patterns ------------------------------------------------------------------------------------

_VECTORS = {4: "b32", 8: "v2.b32", 16: "v4.b32"}
_STRIDES = (0, 1, 2, 3, 4, 5, 8, 16, 17, 32)
"""In elements of the access's width."""


_MASKS = (0x1E, 0x1D, 0x1B, 0x17, 0x0F, 0x1C, 0x18, 0x10, 0x03)
"""What is left of a lane's number: lanes that agree in those bits access one place."""


def patterns() -> Iterator[tuple[str, str]]:
    """Give kernels that access shared memory in one way: names and PTX texts."""
    for width in _VECTORS:
        for stride in _STRIDES:
            if 32 * width * stride <= 48 << 10:
                yield _pattern(f"shared_{width}_by_{stride}", width, stride, 0x1F)
        for mask in _MASKS:
            yield _pattern(f"shared_{width}_of_{mask:05b}", width, 1, mask)
            yield _pattern(f"shared_{width}_of_{mask:05b}_by_4", width, 4, mask)
            yield _pattern(f"shared_{width}_of_{mask:05b}_in_part", width, 1, mask, 0x3F5FF7CE)


def _pattern(name: str, width: int, stride: int, mask: int, active: int = -1) -> tuple[str, str]:
    """Return a kernel whose lanes store and load at (lane & mask) * stride * width."""
    names = ", ".join(f"%r{10 + i}" for i in range(width // 4))
    group = names if width == 4 else "{" + names + "}"
    lines = [f"and.b32 %r3, %t, {mask if stride else 0}; mov.u32 %r2, s;",
             f"mad.lo.u32 %r1, %r3, {width * stride}, %r2;", f"shr.u32 %r4, {active}, %t;",
             "and.b32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0;"]  # fmt: skip
    lines += [f"add.u32 %r{10 + i}, %r3, {i};" for i in range(width // 4)]
    lines += [f"@%p1 st.volatile.shared.{_VECTORS[width]} [%r1], {group};",
              f"@%p1 ld.volatile.shared.{_VECTORS[width]} {group}, [%r1];"]  # fmt: skip
    lines += [f"add.u32 %r10, %r10, %r{10 + i};" for i in range(1, width // 4)]
    lines += ["mad.wide.u32 %d1, %t, 4, %a0;", "st.global.b32 [%d1], %r10;"]
    size = max(32 * width * stride, 32 * width)
    text = kernel("\n".join(lines), 1, chip=CHIP, shared=size)
    return name, text.replace(".entry k(", f".entry {name}(").replace("k_param", f"{name}_param")


def launch_patterns(driver: Driver) -> None:
    """Launch each pattern's kernel once, a warp of each."""
    for name, text in patterns():
        run_text(driver, text, np.zeros(32, np.uint32), entry=name)


# --- what the emulator counts --------------------------------------------------------------------

_KINDS = (
    (r"ldmatrix|ld\.(?:\w+\.)*shared", "shared load"),
    (r"stmatrix|st\.(?:\w+\.)*shared", "shared store"),
    (r"ld\.(?:\w+\.)*global", "global load"),
    (r"st\.(?:\w+\.)*global", "global store"),
    (r"cp\.async\.c[ag]", "copy"),
)


def kind_of(text: str) -> str:
    """Return what sort of access an instruction is; "" of others."""
    plain = re.sub(r"^@\S+\s+", "", text.strip())
    return next((kind for pattern, kind in _KINDS if re.match(pattern, plain)), "")


def totals(instructions: Sequence[Instruction], counters: Counters) -> dict[str, int]:
    """Return counts by sort of access: "global load sectors", "shared store conflicts", ..."""
    found: dict[str, int] = defaultdict(int)
    for one in instructions:
        kind, at = kind_of(one.text), one.index
        if not kind:
            continue
        if kind != "shared load" and kind != "shared store":
            found[f"{kind} requests"] += int(counters.accesses[at])
            found[f"{kind} sectors"] += int(counters.transactions[at])
        if not kind.startswith("global"):
            found[f"{kind} accesses"] += int(counters.shared_accesses[at])
            found[f"{kind} wavefronts"] += int(counters.wavefronts[at])
            found[f"{kind} conflicts"] += int(counters.wavefronts[at] - counters.phases[at])
    return dict(found)


@contextmanager
def counting() -> Generator[dict[str, dict[str, int]]]:
    """Give what the emulator counts of each kernel that is launched in this block, by name."""
    found: dict[str, dict[str, int]] = {}
    make_report = emulator.make_report

    def keep(name: str, chip: str, mode: str, shape: Any, program: Any, *rest: Any) -> Any:
        found[name] = totals(program[1], rest[0])
        return make_report(name, chip, mode, shape, program, *rest)

    with mock.patch.object(emulator, "make_report", keep), settings.use(report=lambda report: None):
        yield found


def emulated() -> dict[str, dict[str, int]]:
    """Run everything on the emulator; returns its counts."""
    with counting() as found:
        with tile.device(f"emulate:{CHIP}"):
            for launch in KERNELS.values():
                launch()
        launch_patterns(emulator.EmulatorDriver(CHIP))
    return found


if __name__ == "__main__":
    with tile.device("cuda"):
        for run in KERNELS.values():
            run()
    launch_patterns(cuda())
