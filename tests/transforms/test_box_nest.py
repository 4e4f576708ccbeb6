"""Which nests of loops load over the ends of the inner loop, and how far ahead."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl as tile
from tests.kernels.nest_kernels import nest
from tiledsl.targets.nvptx import ptxas
from tiledsl.transforms.box_nest import SCHEDULE


def schedule(monkeypatch: pytest.MonkeyPatch, case: str = "", **options: Any) -> str:
    """Return the IR behind `pipeline_loops`."""
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    types = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "table": "*i32:16"}
    constants = {"BM": 64, "BN": 64, "CASE": case, "LIST": False, "WS": False}
    constants |= options.pop("constants", {})
    sizes = dict.fromkeys("NK", "i32:16")
    made = tile.compile(nest, types | sizes, constants, target="sm_90a", **options)
    return dict(made.stages)["pipeline_loops"]


def test_boxes_of_the_next_tile_are_copied_before_its_loop_begins(monkeypatch: pytest.MonkeyPatch):
    assert f'{SCHEDULE} = "2 boxes a trip, 2 trips ahead over' in schedule(monkeypatch)


def test_where_a_tile_lies_may_be_read_from_a_list(monkeypatch: pytest.MonkeyPatch):
    assert SCHEDULE in schedule(monkeypatch, constants={"LIST": True})


@pytest.mark.parametrize("case", ["barrier", "acquire", "found by products", "two"])
def test_tiles_that_must_wait_for_the_ones_before_begin_alone(
    monkeypatch: pytest.MonkeyPatch, case: str
):
    assert SCHEDULE not in schedule(monkeypatch, case)


def test_a_list_that_is_written_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch):
    text = schedule(monkeypatch, "list is written", constants={"LIST": True})
    assert SCHEDULE not in text


@pytest.mark.parametrize(("stages", "ahead"), [(4, 3), (8, 5)])
def test_the_ring_leaves_room_for_the_epilogue(
    monkeypatch: pytest.MonkeyPatch, stages: int, ahead: int
):
    text = schedule(monkeypatch, num_stages=stages, num_warps=8, constants={"BM": 128, "BN": 128})
    assert f"{ahead} trips ahead" in text
