"""Which kernels are split into a warp that copies boxes and those that hold tiles."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.both_modes import launch_in_both_modes
from tests.kernels.nest_kernels import nest
from tiledsl.targets.nvptx import ptxas

SPLIT = "by a warp of its own"
TYPES = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "table": "*i32:16"}
SIZES = dict.fromkeys("NK", "i32:16")


@pytest.fixture(autouse=True)
def _without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)


def split(case: str = "", **constants: Any) -> bool:
    """Return whether the kernel is split where that is asked for."""
    every = {"BM": 64, "BN": 64, "CASE": case, "LIST": False, "WS": True, **constants}
    made = tile.compile(nest, TYPES | SIZES, every, target="sm_90a")
    return SPLIT in dict(made.stages)["pipeline_loops"]


@pytest.mark.parametrize("listed", [False, True])
def test_a_nest_is_split_whose_boxes_lie_where_scalars_say(listed: bool):
    assert split(LIST=listed)


@pytest.mark.parametrize("case", ["barrier", "acquire", "found by products"])
def test_a_nest_whose_tiles_wait_for_what_holds_tiles_is_not(case: str):
    assert not split(case)


def test_a_list_that_is_written_is_not_read_by_another_warp():
    assert not split("list is written", LIST=True)


@pytest.mark.parametrize("case", ["", "two"])
@pytest.mark.parametrize("specialized", [False, True])
def test_loops_one_after_another_are_right(
    monkeypatch: pytest.MonkeyPatch, case: str, specialized: bool
):
    launch_in_both_modes(monkeypatch)
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-3, 4, (192, 208)).astype(np.float16) for _ in range(2))
    c, table = np.full((192, 64), np.nan, np.float32), np.arange(4, dtype=np.int32)
    constants = {"CASE": case, "LIST": True, "WS": specialized}
    with tile.device("emulate:sm_90a"):
        nest[2,](a, b, c, table, 192, 208, BM=64, BN=64, **constants)
    right = b[:64].astype(np.float32) + (b[64:128] if case == "two" else 0)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ right.T)
