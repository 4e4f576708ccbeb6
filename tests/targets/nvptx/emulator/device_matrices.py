"""Matrix instructions with operands, for comparing the emulator with a GPU.

Each is one kernel: `mma.sync` of many warps whose registers are drawn at random, so that no layout
is assumed here, and `wgmma` of several warpgroups from shared memory without swizzle.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import kernel

Array = NDArray[Any]
DATA = ("normal", "wide", "small", "bits")
"""Everyday numbers; finite ones of all exponents; zeros and the least ones; all bit patterns."""
_WARPS = 64
_GROUPS = 8
_COLUMNS = 32
"""n of wgmma."""

_KINDS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
    "f64": np.float64, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
_finfo: Callable[[Any], Any] = ml_dtypes.finfo
_WIDTHS = {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "s32": 32}


def _width(kind: str) -> int:
    return _WIDTHS.get(kind) or np.dtype(_KINDS[kind]).itemsize * 8


@dataclass(frozen=True)
class Product:
    """One matrix instruction on one kind of data.

    Attributes:
        opcode: What follows `mma.sync.aligned.` or `wgmma.mma_async.sync.aligned.`.
        shape: m, n and k.
        types: Of d, a, b and c.
        data: One of `DATA`.
        tail: What follows the operands.
        warpgroup: Whether it is wgmma.
    """

    opcode: str
    shape: tuple[int, int, int]
    types: tuple[str, str, str, str]
    data: str
    tail: str = ""
    warpgroup: bool = False

    def __str__(self) -> str:
        return f"{'wgmma' if self.warpgroup else 'mma'}.{self.opcode} {self.data}"

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 128 if self.warpgroup else 32

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return _GROUPS if self.warpgroup else _WARPS

    def text(self, chip: str) -> str:
        """Return the PTX; its parameters are those of `arrays`."""
        m, n, k = self.shape
        if self.warpgroup:
            body = _warpgroup_body(self)
            return kernel(body, 3, chip=chip, shared=(m + n) * k * _width(self.types[1]) // 8)
        return kernel(_warp_body(self), 4, chip=chip)

    def arrays(self) -> list[Array]:
        """Return a, b and c, and where d is another array, that; the last one is the result."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        m, n, k = self.shape
        drawn = [
            draw(kind, size * self.blocks * _copies(self), self.data, rng)
            for kind, size in zip(self.types[1:], (m * k, k * n, m * n), strict=True)
        ]
        if not self.warpgroup:
            drawn.append(
                np.zeros(m * n * self.blocks * _copies(self) * _width(self.types[0]) // 8, np.uint8)
            )
        return drawn


def _copies(what: Product) -> int:
    """Return how many products a warp computes at once."""
    return 4 if what.shape == (8, 8, 4) and what.types[1] == "f16" else 1


def draw(kind: str, count: int, data: str, rng: np.random.Generator) -> Array:
    """Return elements of a type, as bytes."""
    size = count * _width(kind) // 8
    if kind in _WIDTHS or data == "bits":
        return rng.integers(0, 256, size, np.uint8)
    if data == "normal":
        values = rng.normal(size=count)
    elif data == "small":
        least = float(_finfo(_KINDS[kind]).smallest_subnormal)
        values = rng.choice(np.array([0, 0, 0, 0, -0.0, -0.0, -0.0, 1, -1, 3, -3]) * least, count)
    else:
        info = _finfo(_KINDS[kind])
        exponents = rng.integers(int(info.minexp) - 3, int(info.maxexp), count)
        values = np.ldexp(rng.uniform(1, 2, count) * rng.choice([-1.0, 1.0], count), exponents)
        values[rng.random(count) < 0.1] = 0
    with np.errstate(over="ignore"):
        return values.astype(_KINDS[kind]).view(np.uint8)


# --- kernels -------------------------------------------------------------------------------------


def _warp_body(what: Product) -> str:
    m, n, k = what.shape
    wide = what.types[0] == "f64"
    size, word = (8, "b64") if wide else (4, "b32")
    lines = ["mov.u32 %r1, %ctaid.x;", "mad.lo.u32 %r2, %r1, 32, %t;"]
    names: list[list[str]] = []
    counts = [
        elements * _copies(what) * _width(kind) // (32 * 8 * size)
        for kind, elements in zip(
            (*what.types[1:], what.types[0]), (m * k, k * n, m * n, m * n), strict=True
        )
    ]
    for i, count in enumerate(counts):
        lines += [f".reg .{word} %m{i}_<{count}>;", f"mul.wide.u32 %d{i + 5}, %r2, {size * count};",
                  f"add.s64 %d{i + 1}, %a{i}, %d{i + 5};"]  # fmt: skip
        names.append([f"%m{i}_{j}" for j in range(count)])
    for i in range(3):
        lines += [
            f"ld.global.{word} {name}, [%d{i + 1}+{size * j}];" for j, name in enumerate(names[i])
        ]
    groups = ", ".join("{" + ", ".join(names[i]) + "}" for i in (3, 0, 1, 2))
    lines.append(f"mma.sync.aligned.{what.opcode} {groups};")
    lines += [f"st.global.{word} [%d4+{size * j}], {name};" for j, name in enumerate(names[3])]
    return "\n".join(lines)


def _warpgroup_body(what: Product) -> str:
    """Copy the images of A and B, whose units of 16 bytes lie row by row, and multiply onto C."""
    count = what.shape[1] // (4 if what.types[0] == "f16" else 2)
    rows = 64 + what.shape[1]
    d = ", ".join(f"%c{i}" for i in range(count))
    load = "\n".join(f"ld.global.b32 %c{i}, [%d40+{4 * i}];" for i in range(count))
    store = "\n".join(f"st.global.b32 [%d40+{4 * i}], %c{i};" for i in range(count))
    high = 128 >> 4 << 16 | 256 >> 4 << 32
    return f"""
.reg .b32 %c<{count}>;
mov.u32 %r1, %ctaid.x;
mov.u32 %r60, s;
setp.ge.u32 %p1, %t, {rows};
@%p1 bra COPIED;
setp.ge.u32 %p2, %t, 64;
mad.lo.u32 %r2, %r1, 64, %t;
mul.wide.u32 %d1, %r2, 32;
add.s64 %d2, %a0, %d1;
sub.u32 %r3, %t, 64;
mad.lo.u32 %r4, %r1, {what.shape[1]}, %r3;
mul.wide.u32 %d3, %r4, 32;
add.s64 %d4, %a1, %d3;
selp.b64 %d5, %d4, %d2, %p2;
shr.u32 %r5, %t, 3; mul.lo.u32 %r5, %r5, 256;
and.b32 %r6, %t, 7; mul.lo.u32 %r6, %r6, 16;
add.u32 %r7, %r5, %r6; add.u32 %r7, %r7, %r60;
ld.global.v4.b32 {{%r50,%r51,%r52,%r53}}, [%d5];
st.shared.v4.b32 [%r7], {{%r50,%r51,%r52,%r53}};
ld.global.v4.b32 {{%r50,%r51,%r52,%r53}}, [%d5+16];
st.shared.v4.b32 [%r7+128], {{%r50,%r51,%r52,%r53}};
COPIED:
fence.proxy.async;
bar.sync 0;
cvt.u64.u32 %d10, %r60;
shr.u64 %d11, %d10, 4;
add.s64 %d12, %d11, {high};
add.s64 %d13, %d12, 128;
mad.lo.u32 %r8, %r1, 128, %t;
mul.wide.u32 %d41, %r8, {4 * count};
add.s64 %d40, %a2, %d41;
{load}
setp.eq.u32 %p3, %r60, %r60;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.{what.opcode} {{{d}}}, %d12, %d13, %p3{what.tail};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{store}
"""


# --- products ------------------------------------------------------------------------------------


def _sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def _mma(shape: str, d: str, a: str, b: str, data: str, *, form: str = "") -> Product:
    opcode = f"{shape}.row.col{form}.{d}.{a}.{b}.{d}"
    if a == "b1":
        opcode += f".{data}.popc"
    return Product(opcode, _sizes(shape), (d, a, b, d), data)


def _floats(data: str) -> Iterator[Product]:
    for k, d in product(("k8", "k16"), ("f32", "f16")):
        yield _mma(f"m16n8{k}", d, "f16", "f16", data)
    for k in ("k8", "k16"):
        yield _mma(f"m16n8{k}", "f32", "bf16", "bf16", data)
    for k in ("k4", "k8"):
        yield _mma(f"m16n8{k}", "f32", "tf32", "tf32", data)
    for a, b, k, d in product(("e4m3", "e5m2"), ("e4m3", "e5m2"), ("k16", "k32"), ("f32", "f16")):
        yield _mma(f"m16n8{k}", d, a, b, data)
    for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"):
        yield _mma(shape, "f64", "f64", "f64", data)
    for d in ("f32", "f16"):
        yield _mma("m8n8k4", d, "f16", "f16", data)


def _integers() -> Iterator[Product]:
    for form in ("", ".satfinite"):
        for shape, a, b in product(("m8n8k16", "m16n8k16", "m16n8k32"), ("s8", "u8"), ("s8", "u8")):
            yield _mma(shape, "s32", a, b, "bits", form=form)
        for shape, a, b in product(("m8n8k32", "m16n8k32", "m16n8k64"), ("s4", "u4"), ("s4", "u4")):
            yield _mma(shape, "s32", a, b, "bits", form=form)
    for shape, op in product(("m8n8k128", "m16n8k128", "m16n8k256"), ("and", "xor")):
        yield _mma(shape, "s32", "b1", "b1", op)


def _warpgroups(data: str) -> Iterator[Product]:
    types = [("f16", "f16", 16), ("bf16", "bf16", 16), ("tf32", "tf32", 8)]
    types += [(a, b, 32) for a, b in product(("e4m3", "e5m2"), repeat=2)]
    for a, b, k in types:
        for d in ("f32",) if a in ("bf16", "tf32") else ("f32", "f16"):
            shape = (64, _COLUMNS, k)
            opcode = f"m64n{_COLUMNS}k{k}.{d}.{a}.{b}"
            tail = ", 1, 1, 0, 0" if k == 16 else ", 1, 1"
            yield Product(opcode, shape, (d, a, b, d), data, tail, warpgroup=True)


def _warpgroup_integers() -> Iterator[Product]:
    for a, b, form in product(("s8", "u8"), ("s8", "u8"), ("", ".satfinite")):
        shape = (64, _COLUMNS, 32)
        opcode = f"m64n{_COLUMNS}k32{form}.s32.{a}.{b}"
        yield Product(opcode, shape, ("s32", a, b, "s32"), "bits", warpgroup=True)


PRODUCTS = [
    *(one for data in DATA for one in (*_floats(data), *_warpgroups(data))),
    *_integers(),
    *_warpgroup_integers(),
]
