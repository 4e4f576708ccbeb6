"""Where warps of their own copy boxes, how many, and what registers the others have."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import re

import numpy as np
import pytest

import tiledsl as tile
from examples.ex05_attention import Form, attention, reference
from tests.kernels.both_modes import launch_in_both_modes
from tiledsl.targets.nvptx import ptxas


@pytest.fixture(autouse=True)
def _without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)


@tile.jit
def from_registers(
    a, b, c, M, N, K, BM: tile.constexpr, BN: tile.constexpr, KIND: tile.constexpr
):  # fmt: skip
    """Multiply a.T, or numbers that are cast, or a itself: the first two come from registers."""
    left = tile.make_tensor_descriptor(a, [K, M], [M, 1], [32, BM])
    if KIND != "across":
        left = tile.make_tensor_descriptor(a, [M, K], [K, 1], [BM, 32])
    right = tile.make_tensor_descriptor(b, [N, K], [K, 1], [BN, 32])
    out = tile.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    acc = tile.zeros((BM, BN), tile.float32)
    for k in range(0, K, 32):
        y = tile.trans(right.load([0, k]))
        x = tile.trans(left.load([k, 0])) if KIND == "across" else left.load([0, k])
        acc = tile.dot(x.to(y.dtype), y, acc, input_precision="tf32")
    out.store([0, 0], acc)


FORMS = [
    # Kind, types of a and b, rows and columns, options; producing warps, and whether they share.
    ("across", "fp32", "fp32", 128, 256, {}, 4),
    ("cast", "i8", "fp16", 128, 256, {}, 4),
    ("in place", "fp32", "fp32", 128, 256, {}, 0),
    # Few sums: a warp is enough, and another program may have the registers.
    ("across", "fp32", "fp32", 128, 128, {}, 1),
    # Registers are not the program's to share out.
    ("across", "fp32", "fp32", 128, 256, {"max_registers": 168}, 1),
    ("across", "fp32", "fp32", 128, 256, {"max_registers": 231}, 1),
    ("across", "fp32", "fp32", 128, 256, {"max_registers": 232}, 4),
    ("across", "fp32", "fp32", 128, 256, {"max_registers": 255}, 4),
    # One more beside sixteen warps would leave 96 to each.
    ("across", "fp32", "fp32", 256, 256, {"num_warps": 16}, 0),
    # One warpgroup has as many as a thread can have.
    ("across", "fp32", "fp32", 64, 256, {"num_warps": 4}, 1),
]


@pytest.mark.parametrize(("kind", "left", "right", "rows", "columns", "options", "warps"), FORMS)
def test_a_product_from_registers_has_a_producer_and_a_large_one_its_registers(
    kind: str,
    left: str,
    right: str,
    rows: int,
    columns: int,
    options: dict[str, int],
    warps: int,
):
    types = {"a": f"*{left}:16", "b": f"*{right}:16", "c": "*fp32:16"}
    constants = {"BM": rows, "BN": columns, "KIND": kind}
    options = {"num_warps": 8} | options
    sizes = dict.fromkeys("MNK", "i32:16")
    made = tile.compile(from_registers, types | sizes, constants, target="sm_90a", **options)
    ptx = str(made.asm["ptx"])
    assert f".reqntid {32 * (options['num_warps'] + warps)}" in ptx
    found = re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+)", ptx)
    assert found == ([("dec", "40"), ("inc", "232")] if warps == 4 else [])
    # What producers need as well no limit of the author's takes from them.
    assert ("max_registers" in options) == (".maxnreg 168" in ptx)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("kind", ["across", "cast"])
def test_products_from_registers_are_right(
    monkeypatch: pytest.MonkeyPatch, kind: str, warps: int, stages: int
):
    launch_in_both_modes(monkeypatch)
    rng = np.random.default_rng(4)
    m, n, k = 100, 212, 80
    a = rng.integers(-3, 4, (m, k)).astype(np.float32 if kind == "across" else np.int8)
    b = rng.integers(-3, 4, (n, k)).astype(np.float32 if kind == "across" else np.float16)
    c = np.full((m, n), np.nan, np.float32)
    blocks = {"BM": 16 * warps, "BN": 256, "KIND": kind}
    x = np.ascontiguousarray(a.T) if kind == "across" else a
    with tile.device("emulate:sm_90a"):
        from_registers[1,](x, b, c, m, n, k, **blocks, num_warps=warps, num_stages=stages)
    rows = min(m, 16 * warps)
    right = a[:rows].astype(np.float32) @ b.T.astype(np.float32)
    np.testing.assert_array_equal(c[:rows], right)


def test_consumers_do_not_wait_for_registers_that_the_author_withholds():
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 128, 64)).astype(np.float16) for _ in range(3))
    form = Form(128, 64, num_warps=8, apart=True, max_registers=128)
    with tile.device("emulate:sm_90a"):
        found = attention(q, k, v, form=form)
    np.testing.assert_allclose(found, reference(q, k, v, causal=False), atol=5e-3)
