"""NVVM intrinsics on all threads at once, by the PTX manual's formulas, not by our layouts.

A handler takes the threads, the op, the match of the intrinsic's name and its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from mlir import ir

from tests.transforms.arith_evaluator import Array, cast

if TYPE_CHECKING:
    from tests.targets.gpu.thread_interpreter import Threads


def call(t: Threads, op: Any, *arguments: Array) -> Any:
    name = ir.StringAttr(op.operation.attributes["intrin"]).value.removeprefix("llvm.nvvm.")
    if name == "llvm.sideeffect":
        return None
    for pattern, handler in _INTRINSICS:
        if found := re.fullmatch(pattern, name):
            return handler(t, op, found, *arguments)
    raise AssertionError(f"no intrinsic {name}")


def _special(t: Threads, op: Any, found: re.Match[str]) -> Array:
    register, axis = found[1], "xyz".index(found[2])
    if register == "tid":
        return np.arange(t.count, dtype=np.int32)
    number = t.program[axis] if register == "ctaid" else t.grid[axis]
    return np.full(t.count, number, np.int32)


def _lanes(t: Threads, values: Array, lane: Array) -> Array:
    """Return the value of the lane asked for, in each thread's own warp."""
    assert t.active.all(), "a shuffle needs all lanes"
    own = np.arange(t.count)
    return values[(own & ~31) | (lane & 31)]


def _shfl(t: Threads, op: Any, found: re.Match[str], mask: Array, value: Array, lane: Array,
          last: Array) -> Array:  # fmt: skip
    assert np.all(mask == -1)
    assert np.all(last == 31)
    asked = (np.arange(t.count) ^ lane) if found[1] == "bfly" else lane
    return _lanes(t, value, asked)


def _barrier(t: Threads, op: Any, found: re.Match[str], *_: Array) -> None:
    assert t.active.all(), "a barrier under a divergent condition"
    t.shared.barrier()


def _warp_barrier(t: Threads, op: Any, found: re.Match[str], *_: Array) -> None:
    t.shared.barrier(warps=True)


def _cp_async(
    t: Threads, op: Any, found: re.Match[str], to: Array, source: Array, *size: Array
) -> None:
    count = int(found[1])
    active = t.active
    reads = active & (size[0] == count) if size else active
    assert not size or np.all((size[0] == count) | (size[0] == 0))
    data = t.memory.read(source, count, np.dtype(np.uint8), reads)
    t.copies.append(lambda: t.shared.write(to, data, active))


def _commit(t: Threads, op: Any, found: re.Match[str]) -> None:
    t.groups.append(t.copies)
    t.copies = []


def _wait(t: Threads, op: Any, found: re.Match[str], pending: Array) -> None:
    while len(t.groups) > pending[0]:
        for copy in t.groups.pop(0):
            copy()


def _ldmatrix(t: Threads, op: Any, found: re.Match[str], address: Array) -> Any:
    """Matrix i: rows at the addresses of lanes 8 i to 8 i + 7; lane l gets row l / 4, pair l % 4."""
    count, turned = int(found[1]), found[2] is not None
    words: list[Array] = []
    lane = np.arange(t.count) & 31
    warp = np.arange(t.count) & ~31
    for i in range(count):
        rows = warp[:, None] + 8 * i + np.arange(8)
        firsts = np.zeros(t.count, np.bool_)
        firsts[rows.ravel()] = True
        data = t.shared.read(address, 16, firsts).view(np.uint16)
        matrix = data[rows]
        if turned:
            matrix = matrix.transpose(0, 2, 1)
        pair = matrix[np.arange(t.count), lane // 4].reshape(t.count, 4, 2)
        chosen = pair[np.arange(t.count), lane % 4]
        words.append(np.ascontiguousarray(chosen).view(np.int32)[:, 0])
    return words[0] if count == 1 else Struct(words)


def _stmatrix(t: Threads, op: Any, found: re.Match[str], address: Array, *words: Array) -> None:
    turned = found[2] is not None
    for i, word in enumerate(words):
        pairs = np.ascontiguousarray(word[:, None]).view(np.uint16).reshape(-1, 8, 4, 2)
        matrix = pairs.reshape(-1, 8, 8)
        if turned:
            matrix = matrix.transpose(0, 2, 1)
        data = np.zeros((t.count, 8), np.uint16)
        rows = np.arange(t.count).reshape(-1, 32)[:, 8 * i : 8 * i + 8]
        data[rows] = matrix
        firsts = np.zeros(t.count, np.bool_)
        firsts[rows.ravel()] = True
        t.shared.write(address, data.view(np.uint8), firsts)


class Struct(tuple[Any, ...]):
    """What an intrinsic with several results returns."""

    def __new__(cls, parts: Sequence[Any]) -> Struct:
        return super().__new__(cls, parts)


_MMA_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


def _mma(t: Threads, op: Any, found: re.Match[str], *arguments: Array) -> Any:
    m, n, k = (int(found[i]) for i in (1, 2, 3))
    types = found[4].split(".")
    if types[0] == "f32":
        types = types[1:-1] or ["f16"]
    elif types == ["f16", "f16"]:
        types = ["f16"]
    left, right = _MMA_TYPES[types[0]], _MMA_TYPES[types[-1]]
    warps = t.count // 32
    per_word = max(1, 4 // left.itemsize)
    a_words, b_words = m * k // 32 // per_word, k * n // 32 // per_word
    a = _fragment(arguments[:a_words], left, warps)
    b = _fragment(arguments[a_words : a_words + b_words], right, warps)
    sums = arguments[a_words + b_words :]
    halves = sums[0].ndim == 2
    c = np.concatenate(sums, axis=1) if halves else np.stack(sums, axis=1)
    c = c.reshape(warps, 32, -1)
    lane = np.arange(32)
    group, place = lane // 4, lane % 4
    whole_a = np.zeros((warps, m, k))
    whole_b = np.zeros((warps, k, n))
    tall = 2 if m == 16 else 1
    for i in range(a.shape[2]):
        word, e = divmod(i, per_word)
        rows = group + 8 * (word % tall)
        whole_a[:, rows, per_word * place + e + 4 * per_word * (word // tall)] = a[:, :, i]
    for i in range(b.shape[2]):
        word, e = divmod(i, per_word)
        whole_b[:, per_word * place + e + 4 * per_word * word, group] = b[:, :, i]
    total = whole_a @ whole_b
    out = [
        c[:, :, i] + total[:, group + 8 * (i // 2), 2 * place + i % 2] for i in range(c.shape[2])
    ]
    parts = [part.astype(c.dtype).ravel() for part in out]
    if halves:
        parts = [np.stack(parts[i : i + 2], axis=1) for i in range(0, len(parts), 2)]
    return Struct(parts)


def _fragment(words: Sequence[Array], dtype: np.dtype[Any], warps: int) -> Array:
    """Return a fragment's elements, (warp, lane, element)."""
    whole = np.stack([np.ascontiguousarray(w).reshape(len(w), -1) for w in words], axis=1)
    flat = np.ascontiguousarray(whole.reshape(len(words[0]), -1))
    return flat.view(dtype).astype(np.float64).reshape(warps, 32, -1)


def _tf32(t: Threads, op: Any, found: re.Match[str], x: Array) -> Array:
    return (x.view(np.int32) + 0x1000) & ~0x1FFF


def _to_fp8(t: Threads, op: Any, found: re.Match[str], *x: Array) -> Array:
    dtype = _MMA_TYPES[found[2]]
    parts = [x[0][:, 0], x[0][:, 1]] if found[1] == "f16x2" else [x[1], x[0]]
    codes = np.stack([cast(p, dtype) for p in parts], axis=1)
    return np.ascontiguousarray(codes).view(np.int16)[:, 0]


def _from_fp8(t: Threads, op: Any, found: re.Match[str], x: Array) -> Array:
    return x[:, None].view(_MMA_TYPES[found[1]]).astype(np.float16)


def _to_integer(t: Threads, op: Any, found: re.Match[str], x: Array) -> Array:
    signed = "u" not in found[0]
    to = np.dtype(np.int64 if found[0].count("l") == 2 else np.int32)
    made = cast(x, to, signed)
    if found[0] in ("f2i.rz", "f2ui.rz"):
        return made
    return np.where(np.isnan(x), np.array(-(2 ** (8 * to.itemsize - 1)), to), made)


def _function(name: str) -> Callable[..., Array]:
    table: dict[str, Callable[[Array], Any]] = {
        "ex2": np.exp2,
        "lg2": np.log2,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "sin": np.sin,
        "cos": np.cos,
        "tanh": np.tanh,
    }

    def apply(t: Threads, op: Any, found: re.Match[str], x: Array) -> Array:
        return np.asarray(table[name](x)).astype(x.dtype)

    return apply


_INTRINSICS: list[tuple[str, Callable[..., Any]]] = [
    (r"read\.ptx\.sreg\.(tid|ctaid|nctaid)\.([xyz])", _special),
    (r"shfl\.sync\.(bfly|idx)\.i32", _shfl),
    (r"barrier\.cta\.sync\.aligned\.all", _barrier),
    (r"bar\.warp\.sync", _warp_barrier),
    (r"cp\.async\.c[ag]\.shared\.global\.(\d+)(?:\.s)?", _cp_async),
    (r"cp\.async\.commit\.group", _commit),
    (r"cp\.async\.wait\.group", _wait),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.b16", _ldmatrix),
    (r"stmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.b16", _stmatrix),
    (r"mma\.m(\d+)n(\d+)k(\d+)\.row\.col\.(.*)", _mma),
    (r"f2tf32\.rna", _tf32),
    (r"(ff|f16x2)\.to\.(e4m3|e5m2)x2\.rn", _to_fp8),
    (r"(e4m3|e5m2)x2\.to\.f16x2\.rn", _from_fp8),
    (r"[fd]2u?(?:i|ll)\.rz", _to_integer),
    *(
        (rf"{name}\.approx(?:\.f|\.ftz)?", _function(name))
        for name in ("ex2", "lg2", "rsqrt", "sin", "cos", "tanh")
    ),
]
