"""Kernels lowered for processors that lack what this one may have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tiledsl.targets.host.cpu import Cpu, describe, host_cpu

from .kernels import Kernel
from .test_lower import guarded_pages

NONE: frozenset[int] = frozenset()
CPUS = {
    "sse": describe("x86_64-unknown-linux-gnu", "x86-64", frozenset({"sse2"}), ""),
    "avx2": describe("x86_64-unknown-linux-gnu", "haswell", frozenset({"avx2", "fma"}), ""),
    "neon": describe("aarch64-unknown-linux-gnu", "cortex-a76", frozenset({"neon"}), ""),
}


@pytest.fixture(params=CPUS)
def cpu(request: pytest.FixtureRequest) -> Cpu:
    """What lowering is told; the code still runs here."""
    chosen = CPUS[request.param]
    here = host_cpu()
    return replace(chosen, triple=here.triple, name=here.name, features=here.features)


def test_features_decide_what_a_processor_can_do() -> None:
    wide = describe("x86_64", "znver4", frozenset({"avx512f", "avx512bw", "avx512vl"}), "")
    assert (wide.vector_bytes, wide.masked_bits) == (64, {8, 16, 32, 64})
    first = describe("x86_64", "knl", frozenset({"avx512f"}), "")
    assert first.masked_bits == {32, 64}
    assert (CPUS["avx2"].fma, CPUS["avx2"].half) == (True, False)
    assert (CPUS["sse"].vector_registers, CPUS["neon"].vector_registers) == (16, 32)
    assert (CPUS["sse"].fma, CPUS["neon"].fma) == (False, True)


@pytest.mark.parametrize("name", ["i8", "f16", "f32", "i64", "i1"])
def test_masked_copies_touch_only_their_lanes(cpu: Cpu, name: str) -> None:
    dtypes: dict[str, Any] = {
        "i8": np.int8,
        "f16": np.float16,
        "f32": np.float32,
        "i64": np.int64,
        "i1": bool,
    }
    dtype = np.dtype[Any](dtypes[name])
    k = Kernel(f"*{name}", f"*{name}", "i32", "i32", "i32", cpu=cpu)
    x, y, low, high, step = k.args
    i = (k.pid() - 1) * 64 + k.range(64)
    inside = (i >= low) & (i < high)
    value = k.load(x + i, inside)
    scattered = k.load(x + i * step, inside)
    k.store(y + i, value, inside)
    k.store(y + i * step, scattered, inside)
    memory, address, size = guarded_pages()
    count = size // dtype.itemsize
    target = np.frombuffer(memory, dtype, count, size)
    source = (np.random.default_rng(0).random(count) < 0.5).astype(dtype)
    for low_, high_ in ((0, 5), (count - 5, count), (0, count)):
        target[:] = 0
        k.run(count // 64 + 2, source, address, low_, high_, 1)
        wanted = np.zeros(count, dtype)
        wanted[low_:high_] = source[low_:high_]
        assert (target == wanted).all()


def test_a_row_normalized_and_multiplied_is_right(cpu: Cpu) -> None:
    k = Kernel("*f32", "*f32", "*f32", "i32", cpu=cpu)
    x, w, out, n = k.args
    i, j = k.range(16)[:, None], k.range(32)[None, :]
    mask = (j < n) & (i >= 0)
    rows = k.load(x + (i * n + j), mask, 0.0)
    rows = rows / k.reduce(rows, 1, "arith.addf")[:, None]
    weights = k.load(w + (k.range(32)[:, None] * 16 + k.range(16)[None, :]))
    product = k.dot(rows, weights, k.full((16, 16), 0, "f32"))
    running = k.scan(product, 1, "arith.addf")
    k.store(out + (i * 16 + k.range(16)[None, :]), running)
    rng = np.random.default_rng(0)
    a, b = rng.random((16, 29), dtype=np.float32) + 1, rng.random((32, 16), dtype=np.float32)
    found = np.zeros((16, 16), np.float32)
    k.run(1, a, b, found, 29)
    wanted = ((a / a.sum(1, keepdims=True)) @ b[:29]).cumsum(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_half_precision_works_without_an_instruction_for_it(cpu: Cpu) -> None:
    k = Kernel("*f16", "*f16", cpu=cpu)
    x, out = k.args
    i = k.range(64)
    k.store(out + i, k.load(x + i) * k.load(x + i))
    data = np.random.default_rng(0).standard_normal(64).astype(np.float16)
    found = np.zeros(64, np.float16)
    k.run(1, data, found)
    assert (found == data * data).all()
