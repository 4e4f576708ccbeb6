"""Kernels of elementwise and shape operations, run on the CPU, against NumPy."""

from __future__ import annotations

import mmap
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.dialects import tile

from .kernels import Kernel, Tile

Array = np.ndarray[Any, Any]
DTYPES = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "i1": np.bool_,
}
POISON = 7


def values(dtype: Any, shape: int | tuple[int, ...], seed: int = 0) -> Array:
    """Return small whole numbers."""
    rng = np.random.default_rng(seed)
    if dtype is np.bool_:
        return np.asarray(rng.integers(0, 2, shape), bool)
    return (np.floor(rng.random(shape) * 16) - 8).astype(dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_a_masked_copy_touches_what_its_mask_says_and_no_more(name: str) -> None:
    k = Kernel(f"*{name}", f"*{name}", "i32")
    x, y, n = k.args
    i = k.pid() * 256 + k.range(256)
    k.store(y + i, k.load(x + i, i < n), i < n)
    source = values(DTYPES[name], 1100)
    for count in (0, 1, 7, 255, 256, 257, 1000):
        target = np.full(1100, POISON).astype(DTYPES[name])
        wanted = target.copy()
        wanted[:count] = source[:count]
        k.run(5, source, target, count)
        assert target.tobytes() == wanted.tobytes()


def test_masked_lanes_keep_their_position() -> None:
    k = Kernel("*i32", "*i32")
    x, y = k.args
    i = k.range(8)
    k.store(y + i, k.load(x + (i + 3), i + 3 < 8, -1))
    out = np.zeros(8, np.int32)
    k.run(1, np.arange(8, dtype=np.int32), out)
    assert list(out) == [3, 4, 5, 6, 7, -1, -1, -1]


def test_a_scalar_store_under_a_false_mask_leaves_memory_alone() -> None:
    k = Kernel("*f32", "i32")
    x, flag = k.args
    k.store(x, 2.0, flag.ne(0))
    out = np.full(1, -1, np.float32)
    k.run(1, out, 0)
    assert out[0] == -1
    k.run(1, out, 1)
    assert out[0] == 2


def guarded_pages() -> tuple[mmap.mmap, int, int]:
    """Map a page between two that must not be touched; return it, its address and size."""
    import ctypes

    size = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * size)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for page in (start, start + 2 * size):
        assert libc.mprotect(ctypes.c_void_p(page), size, 0) == 0
    return memory, start + size, size


@pytest.mark.parametrize("name", ["i8", "f16", "f32", "i64"])
@pytest.mark.parametrize("contiguous", [True, False])
def test_lanes_masked_off_are_never_touched(name: str, contiguous: bool) -> None:
    dtype = np.dtype(DTYPES[name])
    k = Kernel(f"*{name}", f"*{name}", "i32", "i32", "i32")
    x, y, low, high, step = k.args
    i = (k.pid() - 1) * 64 + k.range(64)
    inside = (i >= low) & (i < high)
    at = i if contiguous else i * step
    k.store(y + at, k.load(x + at, inside) + 1, inside)
    memory, address, size = guarded_pages()
    count = size // dtype.itemsize
    whole = np.frombuffer(memory, dtype, count, size)
    for low_, high_ in ((0, 5), (count - 5, count), (0, count)):
        whole[:] = 0
        k.run(count // 64 + 2, address, address, low_, high_, 1)
        wanted = np.zeros(count, dtype)
        wanted[low_:high_] = 1
        assert (whole == wanted).all()


def test_neighbours_in_descending_order_are_read_and_written_right() -> None:
    k = Kernel("*f32", "*f32", "*f32", "i32")
    x, y, z, n = k.args
    i = k.pid() * 64 + k.range(64)
    k.store(y + i, k.load(x + (n - 1 - i), i < n), i < n)
    k.store(z + (n - 1 - i), k.load(x + i, i < n), i < n)
    source = np.arange(1000, dtype=np.float32)
    flips = np.zeros((2, 1000), np.float32)
    k.run(16, source, flips[0], flips[1], 1000)
    assert (flips == source[::-1]).all()


@pytest.mark.parametrize("shape", [(4, 8), (2, 64), (64, 2), (16, 1), (1, 16), (1, 1), (128, 4)])
def test_strided_tiles_are_read_and_written_where_their_strides_say(shape: Any) -> None:
    rows, columns = shape
    k = Kernel("*i32", "*i32", *["i32"] * 4)
    x, y, sx0, sx1, sy0, sy1 = k.args
    i, j = k.range(rows)[:, None], k.range(columns)[None, :]
    k.store(y + (i * sy0 + j * sy1), k.load(x + (i * sx0 + j * sx1)) + 1)
    storage = values(np.int32, (2 * rows, 3 * columns))
    for view in (storage[:rows, :columns], storage[::2, ::3], storage[::-2, 2::3]):
        out = np.zeros(shape[::-1], np.int32).T
        strides = [s // 4 for s in (*view.strides, *out.strides)]
        k.run(1, view, out, *strides)
        assert (out == view + 1).all()


def test_tiles_of_the_same_memory_are_read_before_they_are_written() -> None:
    # x[i] = x[n-1-i] in place, and a shifted copy onto itself.
    k = Kernel("*i32", "i32")
    x, shift = k.args
    i = k.range(256)
    k.store(x + (255 - i), k.load(x + i))
    k.store(x + i, k.load(x + (i + shift)))
    for shift_ in (1, 3, 64):
        data = np.arange(512, dtype=np.int32)
        wanted = data.copy()
        wanted[:256] = wanted[:256][::-1].copy()
        wanted[:256] = wanted[shift_ : 256 + shift_].copy()
        k.run(1, data, shift_)
        assert (data == wanted).all()


def test_a_load_sees_stores_before_it_and_none_after_it() -> None:
    k = Kernel("*i32", "*i32")
    x, y = k.args
    i = k.range(128)
    before = k.load(x + i)
    k.store(x + i, i * 3)
    after = k.load(x + i)
    k.store(x + i, 9)
    k.store(y + i, after - before)
    data, out = values(np.int32, 128), np.zeros(128, np.int32)
    wanted = np.arange(128) * 3 - data
    k.run(1, data, out)
    assert (out == wanted).all()
    assert (data == 9).all()


def test_addresses_that_wrap_in_32_bits_are_the_ones_of_each_lane() -> None:
    # Index 2**31 - 3 + lane wraps for lanes 3 and up: those are masked off, or go below the base.
    k = Kernel("*i8", "*i8", "i32")
    x, y, start = k.args
    i = k.range(16)
    at = start + i
    k.store(y + i, k.load(x + at, at > 0, 1))
    tail = np.arange(3, dtype=np.int8) + 40
    out = np.zeros(16, np.int8)
    k.run(1, tail.ctypes.data - (2**31 - 3), out, 2**31 - 3)
    assert list(out) == [40, 41, 42, *[1] * 13]


def test_offsets_beyond_32_bits_are_exact() -> None:
    k = Kernel("*i64", "i32", "i32")
    out, a, b = k.args
    i = k.range(32)
    wide = (a + i).convert("extsi", "i64") * b.convert("extsi", "i64")
    k.store(out + i, wide)
    found = np.zeros(32, np.int64)
    k.run(1, found, 2**31 - 16, 7864320)
    lanes = (np.arange(32, dtype=np.int64) + 2**31 - 16 + 2**31) % 2**32 - 2**31
    assert (found == lanes * 7864320).all()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_index_arithmetic_wraps_as_vectors_would(data: Any) -> None:
    """Random integer expressions of a range and scalars, at every width."""
    width = data.draw(st.sampled_from([8, 16, 32, 64]))
    dtype = np.dtype(f"i{width // 8}")
    k = Kernel(f"*i{width}", f"i{width}", f"i{width}")
    out, a, b = k.args
    lanes = np.arange(64).astype(dtype)
    i = k.range(64)
    i = i if width == 32 else i.convert("trunci" if width < 32 else "extsi", f"i{width}")
    scalars = data.draw(st.tuples(*[st.integers(-(1 << width - 1), (1 << width - 1) - 1)] * 2))
    pool: list[tuple[Tile, Array]] = [
        (i, lanes),
        (k.broadcast(a, (64,)), np.full(64, scalars[0], dtype)),
        (k.broadcast(b, (64,)), np.full(64, scalars[1], dtype)),
        (k.full((64,), 24, f"i{width}"), np.full(64, 24, dtype)),
    ]
    with np.errstate(over="ignore"):
        for _ in range(data.draw(st.integers(1, 8))):
            (x, vx), (y, vy) = (data.draw(st.sampled_from(pool)) for _ in range(2))
            match data.draw(st.sampled_from(["add", "sub", "mul", "and", "shr", "shl", "div"])):
                case "add":
                    pool.append((x + y, vx + vy))
                case "sub":
                    pool.append((x - y, vx - vy))
                case "mul":
                    pool.append((x * y, vx * vy))
                case "and":
                    pool.append((x & y, vx & vy))
                case "shr":
                    pool.append((x >> 3, vx >> 3))
                case "shl":
                    pool.append((x << 2, vx << 2))
                case _:
                    pool.append((x & 15, vx & 15))
    result, wanted = pool[-1]
    k.store(out + k.range(64), result)
    found = np.zeros(64, dtype)
    k.run(1, found, *scalars)
    assert (found == wanted).all()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_chains_of_shape_operations_are_numpys(data: Any) -> None:
    k = Kernel("*i32", "*i32")
    x, y = k.args
    size = data.draw(st.sampled_from([4, 32, 64, 256]))
    source = np.arange(size, dtype=np.int32) * 3
    current, wanted = k.load(x + k.range(size)), source
    for _ in range(data.draw(st.integers(1, 5))):
        current, wanted = shape_step(k, current, wanted, data)
    flat = current.reshape(wanted.size)
    k.store(y + k.range(wanted.size), flat)
    out = np.zeros(wanted.size, np.int32)
    k.run(1, source, out)
    assert (out == wanted.ravel()).all()


def shape_step(k: Kernel, x: Tile, v: Array, data: Any) -> tuple[Tile, Array]:
    """Apply a random shape operation to a tile and its value."""
    rank = v.ndim
    axes = range(rank)
    kinds = ["expand", "reshape", "trans", "join", "cat", "add"]
    kinds += ["split"] if v.shape[-1] == 2 and rank > 1 else []
    kinds += ["broadcast"] if 1 in v.shape and v.size < 512 else []
    match data.draw(st.sampled_from(kinds)):
        case "expand" if rank < 4:
            axis = data.draw(st.integers(0, rank))
            return x.expand(axis), np.expand_dims(v, axis)
        case "trans" if rank > 1:
            order = data.draw(st.permutations(axes))
            return x.trans(*order), v.transpose(order)
        case "join" if v.size < 512 and rank < 4:
            return k.join(x, x + 1), np.stack([v, v + 1], -1)
        case "cat" if v.size < 512:
            axis = data.draw(st.sampled_from(axes))
            return k.cat(x, x * 2, axis), np.concatenate([v, v * 2], axis)
        case "split":
            first, second = k.split(x)
            return first - second * 2, v[..., 0] - v[..., 1] * 2
        case "broadcast":
            axis = data.draw(st.sampled_from([d for d in axes if v.shape[d] == 1]))
            shape = [4 if d == axis else n for d, n in enumerate(v.shape)]
            return k.broadcast(x, shape), np.broadcast_to(v, shape)
        case "reshape":
            bits = v.size.bit_length() - 1
            low = data.draw(st.integers(0, bits))
            return x.reshape(v.size >> low, 1 << low), v.reshape(v.size >> low, 1 << low)
        case _:
            return x + 1, v + 1


def test_a_chain_longer_than_pythons_stack_is_lowered() -> None:
    k = Kernel("*i64", "i64")
    x, step = k.args
    i = k.range(16)
    total = k.load(x + i)
    for _ in range(600):
        total = (total ^ step) + step
    k.store(x + i, total)
    data = np.arange(16, dtype=np.int64)
    wanted = data.copy()
    for _ in range(600):
        wanted = (wanted ^ 5) + 5
    k.run(1, data, 5)
    assert (data == wanted).all()


def test_programs_see_their_place_in_the_grid() -> None:
    k = Kernel("*i32")
    (out,) = k.args
    nx, ny = k.programs(0), k.programs(1)
    linear = (k.pid(2) * ny + k.pid(1)) * nx + k.pid(0)
    k.store(out + linear, k.pid(0) + k.pid(1) * 100 + k.pid(2) * 10000 + k.programs(2))
    found = np.zeros((4, 3, 5), np.int32)
    k.run((5, 3, 4), found)
    z, y, x = np.indices(found.shape)
    assert (found == x + y * 100 + z * 10000 + 4).all()


def test_pointers_can_be_kept_selected_and_moved() -> None:
    k = Kernel("*i32", "*i32", "*i32", "i32")
    a, b, out, n = k.args
    i = k.range(32)
    pointers = k.where(i < n, k.broadcast(a, (32,)), k.broadcast(b, (32,)))
    k.store(out + i, k.load(pointers + i))
    first, second = np.arange(32, dtype=np.int32), np.arange(32, dtype=np.int32) + 100
    found = np.zeros(32, np.int32)
    k.run(1, first, second, found, 11)
    assert (found == np.where(np.arange(32) < 11, first, second)).all()


def test_bools_in_memory_are_true_where_not_zero() -> None:
    k = Kernel("*i1", "*i1", "*i32")
    x, y, out = k.args
    i = k.range(64)
    flags = k.load(x + i)
    k.store(y + i, flags)
    k.store(out + i, k.where(flags, k.full((64,), 1, "i32"), 0))
    source = (np.arange(64, dtype=np.uint8) % 3) * 100
    copied, ints = np.zeros(64, np.uint8), np.zeros(64, np.int32)
    k.run(1, source, copied, ints)
    assert (copied == (source != 0)).all()
    assert (ints == (source != 0)).all()


def test_scalar_arguments_of_every_kind_arrive() -> None:
    names = ["f32", "i8", "f64", "i1", "bf16", "f16", "i16", "i64"]
    k = Kernel("*f64", *names)
    out, *given_ = k.args
    for place, (name, value) in enumerate(zip(names, given_, strict=True)):
        if name == "i1":
            value = value.convert("uitofp", "f64")
        elif name[0] == "i":
            value = value.convert("sitofp", "f64")
        elif name != "f64":
            value = value.to("f64")
        k.store(out + place, value)
    found = np.zeros(8)
    k.run(1, found, 1.5, -3, 2.25, True, -0.5, 1e9, -300, 2**40)
    assert list(found) == [1.5, -3, 2.25, 1, -0.5, np.inf, -300, 2**40]


def test_hints_and_assumptions_change_nothing() -> None:
    k = Kernel("*i32", "i32")
    out, n = k.args
    k.build(tile.AssumeOp, n > 0)
    i = k.range(16)
    hinted = k.build(tile.HintOp, i + n, result=i.type, divisibility=[16], contiguity=[16])
    k.store(out + i, hinted)
    found = np.zeros(16, np.int32)
    k.run(1, found, 32)
    assert (found == np.arange(16) + 32).all()
