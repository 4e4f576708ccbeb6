"""Atomics on global and shared memory with operands, for comparing the emulator with a GPU.

Each thread has a word of its own, so the order of threads does not matter: what is compared is the
arithmetic, subnormal numbers and NaNs among it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.device_cases import draw
from tests.targets.nvptx.emulator.running import kernel

Array = NDArray[Any]
_ROWS = 2048


@dataclass(frozen=True)
class Atomic:
    """One atomic instruction.

    Attributes:
        space: "global" or "shared".
        op: As "add" or "cas".
        kind: The type.
        tail: As ".noftz".
    """

    space: str
    op: str
    kind: str
    tail: str = ""

    def __str__(self) -> str:
        return f"atom.{self.space}.{self.op}{self.tail}.{self.kind}"

    @property
    def blocks(self) -> int:
        """Blocks of the launch, of 32 threads."""
        return _ROWS // 32

    @property
    def _bits(self) -> int:
        return {"f16": 16, "bf16": 16, "f64": 64, "b16": 16}.get(self.kind) or (
            64 if self.kind.endswith("64") else 32
        )

    def text(self, chip: str) -> str:
        """Return the PTX; its parameters are the words, two operands, and the old values."""
        size = self._bits // 8
        letter = {2: "h", 4: "r", 8: "d"}[size]
        a, b, c, old, new = (f"%{letter}{n}" for n in range(50, 55))
        operands = f"{b}, {c}" if self.op == "cas" else b
        lines = ["mov.u32 %r1, %ctaid.x;", "mad.lo.u32 %r2, %r1, 32, %t;"]
        for i in range(4):
            lines += [f"mad.wide.u32 %d{i + 1}, %r2, {size}, %a{i};"]
        lines += [f"ld.global.b{8 * size} {name}, [%d{i + 1}];" for i, name in enumerate((a, b, c))]
        where = "[%d1]"
        if self.space == "shared":
            lines += ["mov.u32 %r3, s;", f"mad.lo.u32 %r4, %t, {size}, %r3;",
                      f"st.shared.b{8 * size} [%r4], {a};"]  # fmt: skip
            where = "[%r4]"
        lines.append(
            f"atom.{self.space}.{self.op}{self.tail}.{self.kind} {old}, {where}, {operands};"
        )
        lines.append(f"st.global.b{8 * size} [%d4], {old};")
        if self.space == "shared":
            lines += [
                f"ld.shared.b{8 * size} {new}, [%r4];",
                f"st.global.b{8 * size} [%d1], {new};",
            ]
        shared = 32 * size if self.space == "shared" else 0
        return kernel("\n".join(lines), 4, chip=chip, shared=shared)

    def arrays(self) -> list[Array]:
        """Return the words, the operands, and room for the old values; as unsigned integers."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        unsigned = f"u{self._bits // 8}"
        drawn = [draw(self.kind, _ROWS, rng).view(unsigned) for _ in range(3)]
        if self.op == "cas":
            drawn[1] = np.where(np.arange(_ROWS) % 2, drawn[0], drawn[1])
        return [*drawn, np.zeros(_ROWS, unsigned)]


_INTEGERS = (
    *product(("add", "min", "max"), ("u32", "s32")),
    *product(("min", "max"), ("u64", "s64")), ("add", "u64"),
    *product(("and", "or", "xor", "exch", "cas"), ("b32", "b64")),
    ("inc", "u32"), ("dec", "u32"), ("cas", "b16"),
)  # fmt: skip
_FLOATS = (
    ("f32", ""), ("f64", ""), ("f16", ".noftz"), ("bf16", ".noftz"),
    ("f16x2", ".noftz"), ("bf16x2", ".noftz"),
)  # fmt: skip

ATOMICS = [
    *(Atomic(space, op, kind) for space in ("global", "shared") for op, kind in _INTEGERS),
    *(Atomic(space, "add", kind, tail) for space in ("global", "shared") for kind, tail in _FLOATS),
]
