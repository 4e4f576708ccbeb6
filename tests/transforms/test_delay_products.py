"""Second products done a trip late: which loops qualify, and what their trips look like then."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from examples.ex05_attention import attention_forward
from tests.kernels.both_modes import launch_in_both_modes
from tests.transforms.chained_products import TYPES_OF_CHAINED, chained, chained_in_tf32

TYPES = {
    **dict.fromkeys(("q", "k", "v", "out"), "*bf16:16"),
    **dict.fromkeys(("heads", "kv_heads", "length", "together"), "i32"),
    **dict.fromkeys(("stride_q", "stride_kv"), "i32:16"),
    "scale": "fp32",
}
CONSTANTS = {
    "CAUSAL": True,
    "MANY": False,
    "APART": False,
    "OVERLAP": True,
    "BLOCK_Q": 128,
    "BLOCK_K": 128,
    "D": 64,
}
_OPS = (
    "warpgroup_mma", "warpgroup_wait", "anchor", "mbarrier_wait", "mbarrier_arrive", "box_copy",
    "barrier",
)  # fmt: skip


def loop_of(made: Any) -> str:
    """Return the text of a kernel's loop at the tgpu level."""
    lines = str(made.asm["tgpu"]).splitlines()
    first = next(i for i, line in enumerate(lines) if "scf.for" in line)
    end = " " * (len(lines[first]) - len(lines[first].lstrip())) + "}"
    last = next(i for i, line in enumerate(lines) if i > first and line.startswith(end))
    return "\n".join(lines[first:last])


def order(text: str) -> list[str]:
    """Return what matters of a loop, in order; waits with how many they leave in flight."""
    found: list[str] = []
    for line in text.splitlines():
        match = re.search(rf'"tgpu\.({"|".join(_OPS)})"', line)
        if match is not None:
            pending = re.search(r"pending = (\d)", line)
            issuer = " issuer" if 'by = "issuer"' in line else ""
            found.append(match[1] + issuer + (f" {pending[1]}" if pending else ""))
    return found


@pytest.fixture(scope="module")
def attention() -> Any:
    return tile.compile(attention_forward, TYPES, CONSTANTS, target="sm_90a", num_warps=8)


def test_the_late_product_runs_beside_the_softmax(attention: Any) -> None:
    refill = ["mbarrier_wait issuer", "box_copy"]
    assert order(loop_of(attention)) == [
        "mbarrier_wait", "warpgroup_mma", "mbarrier_wait", "warpgroup_mma", *refill,
        "warpgroup_wait 1", "mbarrier_arrive", *refill, *["anchor"] * 4,
        "warpgroup_wait 0", "mbarrier_arrive",
    ]  # fmt: skip
    assert attention.resources.spills == 0


def test_a_loop_whose_author_declines_it_has_no_late_products() -> None:
    constants = {**CONSTANTS, "OVERLAP": False}
    made = tile.compile(attention_forward, TYPES, constants, target="sm_90a", num_warps=8)
    refill = ["mbarrier_wait issuer", "box_copy"]
    # Slots are given up right behind the product that reads them all the same.
    assert order(loop_of(made)) == [
        "mbarrier_wait", "warpgroup_mma", "warpgroup_wait 0", "mbarrier_arrive",
        "mbarrier_wait", "warpgroup_mma", *refill, "warpgroup_wait 0", "mbarrier_arrive", *refill,
    ]  # fmt: skip


def test_keys_and_values_are_asked_for_by_different_warps(attention: Any) -> None:
    waits = [line for line in loop_of(attention).splitlines() if 'by = "issuer"' in line]
    assert ["issuer = 1" in line for line in waits] == [True, False]


def test_what_packs_an_operand_stays_behind_the_wait(attention: Any) -> None:
    loop = loop_of(attention)
    assert loop.rindex("math.exp2") < loop.index('"tgpu.anchor"')
    assert loop.index("arith.truncf") > loop.rindex('"tgpu.anchor"')


@pytest.mark.parametrize(
    ("mode", "delayed"),
    [("plain", True), ("independent", False), ("used", False), ("stores", False)],
)
def test_only_products_that_a_loop_carries_alone_are_late(mode: str, delayed: bool) -> None:
    made = tile.compile(
        chained, TYPES_OF_CHAINED, {"MODE": mode, "BLOCK": 64}, target="sm_90a", num_warps=4
    )
    assert ("pending = 1" in str(made.asm["tgpu"])) == delayed


@pytest.mark.parametrize("stages", [2, 3])
def test_a_product_whose_operand_threads_exchange_is_not_late(
    monkeypatch: pytest.MonkeyPatch, stages: int
) -> None:
    launch_in_both_modes(monkeypatch)
    rng = np.random.default_rng(6)
    shapes = ((64, 96), (32, 96), (64, 32))
    a, b, d = (rng.integers(-2, 3, shape).astype(np.float32) for shape in shapes)
    c = np.full((64, 64), np.nan, np.float32)
    with tile.device("emulate:sm_90a"):
        chained_in_tf32[1,](a, b, d, c, 64, 64, 32, 96, num_stages=stages)
    np.testing.assert_array_equal(c, a @ b.T @ d.T)
