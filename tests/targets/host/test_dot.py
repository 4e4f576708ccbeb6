"""Products of every type and shape."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .kernels import Kernel

TYPES: dict[str, tuple[Any, str, Any]] = {
    "f32": (np.float32, "f32", np.float32),
    "f64": (np.float64, "f64", np.float64),
    "f16": (np.float16, "f32", np.float32),
    "bf16": (ml_dtypes.bfloat16, "f32", np.float32),
    "f8E4M3FN": (ml_dtypes.float8_e4m3fn, "f32", np.float32),
    "f8E5M2": (ml_dtypes.float8_e5m2, "f32", np.float32),
    "i8": (np.int8, "i32", np.int32),
}


def whole(dtype: Any, *shape: int) -> Any:
    return np.random.default_rng(shape[0]).integers(-2, 3, shape).astype(dtype)


def product(
    name: str, a: Any, b: Any, c: Any, attributes: Any, acc: str, swap: bool = False
) -> Any:
    """Return c + a @ b as the kernel computes it; `swap` loads b from its transpose."""
    k = Kernel(f"*{name}", f"*{name}", f"*{acc}", f"*{acc}")
    pa, pb, pc, out = k.args

    def place(shape: tuple[int, ...]) -> Any:
        return k.range(int(np.prod(shape))).reshape(*shape)

    x, y, z = k.load(pa + place(a.shape)), None, k.load(pc + place(c.shape))
    if swap:
        order = [*range(b.ndim - 2), b.ndim - 1, b.ndim - 2]
        y = k.load(pb + place(tuple(b.shape[d] for d in order))).trans(*order)
        b = np.ascontiguousarray(b.transpose(order))
    else:
        y = k.load(pb + place(b.shape))
    k.store(out + place(c.shape), k.dot(x, y, z, **attributes))
    found = np.full(c.shape, 77, c.dtype)
    k.run(1, a, b, c, found)
    return found


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("sizes", [(16, 16, 16), (1, 16, 2), (32, 128, 64), (64, 1, 8), (4, 2, 1)])
def test_products_of_whole_numbers_are_exact(name: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    dtype, acc, total = TYPES[name]
    a, b, c = whole(dtype, m, k), whole(dtype, k, n), whole(total, m, n)
    wanted = c + a.astype(total) @ b.astype(total)
    assert (product(name, a, b, c, {}, acc) == wanted).all()


@pytest.mark.parametrize("name", ["f32", "i8", "bf16"])
def test_products_have_batches_and_transposed_operands(name: str) -> None:
    dtype, acc, total = TYPES[name]
    a, b, c = whole(dtype, 4, 16, 8), whole(dtype, 4, 8, 32), whole(total, 4, 16, 32)
    wanted = c + a.astype(total) @ b.astype(total)
    for swap in (False, True):
        assert (product(name, a, b, c, {"precision": "tf32"}, acc, swap) == wanted).all()


def test_integers_wrap_and_may_be_unsigned() -> None:
    a, b = np.full((2, 1024), 127, np.int8), np.full((1024, 2), 127, np.int8)
    c = np.full((2, 2), 2**31 - 1, np.int32)
    total = (int(c[0, 0]) + 1024 * 127 * 127 + 2**31) % 2**32 - 2**31
    assert (product("i8", a, b, c, {}, "i32") == total).all()
    a = np.array([[200, 255]], np.uint8)
    b = np.array([[-3], [5]], np.int8)
    found = product(
        "i8", a.view(np.int8), b, np.zeros((1, 1), np.int32), {"a_unsigned": True}, "i32"
    )
    assert found == 200 * -3 + 255 * 5


def test_a_half_precision_accumulator_rounds_once() -> None:
    a, b = whole(np.float16, 16, 64) / 3, whole(np.float16, 64, 16) / 3
    c = whole(np.float16, 16, 16)
    a, b = a.astype(np.float16), b.astype(np.float16)
    exact = c + a.astype(np.float64) @ b.astype(np.float64)
    found = product("f16", a, b, c, {}, "f16")
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=1e-3, atol=1e-3)


def test_a_product_of_products_is_exact() -> None:
    k = Kernel("*bf16", "*f32")
    x, out = k.args
    i = k.range(64)[:, None] * 64 + k.range(64)[None, :]
    ones = k.load(x + i)
    zero = k.full((64, 64), 0, "f32")
    first = k.dot(ones, ones, zero)
    k.store(out + i, k.dot(first.to("bf16"), ones, first))
    found = np.zeros((64, 64), np.float32)
    k.run(1, np.ones((64, 64), ml_dtypes.bfloat16), found)
    assert (found == 64 * 64 + 64).all()
