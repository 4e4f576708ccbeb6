"""What our own compiler makes of products and attention, on the chips that differ in instructions."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from examples.ex04_matmul import multiply
from examples.ex05_attention import attention, reference
from tests.targets.nvptx.emulator.products import product_in
from tiledsl.targets.nvptx import ptxas

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator reads PTX; ptxas would only take time."""
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    monkeypatch.setenv("TILEDSL_EMULATE_PROCESSES", "1")


def _normal(shape: tuple[int, ...], kind: Any, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(kind)


@pytest.mark.parametrize(
    ("chip", "kind", "mode", "tolerance"),
    [
        ("sm_80", np.float16, "eager", 2e-2),  # mma m16n8k16, two passes of the unit
        ("sm_90a", np.float16, "lazy", 2e-2),  # and stmatrix, one pass
        ("sm_86", ml_dtypes.bfloat16, "lazy", 2e-1),
        ("sm_80", np.float32, "lazy", 1e-2),
    ],
    ids=str,
)
def test_products(chip: str, kind: Any, mode: Literal["eager", "lazy"], tolerance: float) -> None:
    a, b = _normal((70, 50), kind, 1), _normal((50, 72), kind, 2)
    with tile.device(f"emulate:{chip}", mode=mode):
        found = multiply(a, b, block=(64, 64, 32), num_warps=4)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, atol=tolerance)


@pytest.mark.parametrize("chip", ["sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("kind", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=str)
def test_fp8_products(chip: str, kind: Any) -> None:
    a, b = _normal((32, 64), kind, 1), _normal((64, 32), kind, 2)
    with tile.device(f"emulate:{chip}"):
        found = product_in(a, b, np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, exact, atol=1e-2 if chip == "sm_89" else 1e-4)


def test_f64_products() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(32, 32)), rng.normal(size=(32, 32))
    with tile.device("emulate:sm_80"):
        found = product_in(a, b, np.float64)
    np.testing.assert_allclose(found, a @ b, atol=1e-13)


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kinds", [(np.int8, np.int8), (np.uint8, np.int8)], ids=str)
def test_product_ins(chip: str, kinds: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(0)
    a: Array = rng.integers(0, 128, (32, 96)).astype(kinds[0])
    b: Array = rng.integers(-128, 128, (96, 32)).astype(kinds[1])
    with tile.device(f"emulate:{chip}"):
        found = product_in(a, b, np.int32)
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize(("chip", "causal"), [("sm_80", True), ("sm_90a", False)])
def test_attention(chip: str, causal: bool) -> None:
    q, k, v = (_normal((1, 70, 32), np.float16, seed) for seed in range(3))
    with tile.device(f"emulate:{chip}", mode="lazy"):
        found = attention(q, k, v, causal)
    np.testing.assert_allclose(found, reference(q, k, v, causal), atol=5e-3)
