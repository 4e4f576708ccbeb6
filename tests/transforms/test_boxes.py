"""Barriers of boxes: where they are made."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl as tile
from tiledsl.targets.nvptx import ptxas


@tile.jit
def one_and_many(q: Any, k: Any, out: Any, length: Any) -> None:
    queries = tile.make_tensor_descriptor(q, [64, 64], [64, 1], [64, 64]).load([0, 0])
    keys = tile.make_tensor_descriptor(k, [length, 64], [64, 1], [64, 64])
    total = tile.zeros((64, 64), tile.float32)
    for start in tile.range(0, length, 64, num_stages=3, warp_specialize=False):
        total = tile.dot(queries, keys.load([start, 0]).T, total)
    at = tile.arange(0, 64)[:, None] * 64 + tile.arange(0, 64)[None, :]
    tile.store(out + at, total)


def test_barriers_of_one_load_and_of_a_loop_are_made_together_and_met_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    types = {"q": "*fp16:16", "k": "*fp16:16", "out": "*fp32:16", "length": "i32:16"}
    ptx = str(tile.compile(one_and_many, types, target="sm_90a").asm["ptx"])
    first = ptx.index("mbarrier.arrive.expect_tx")
    before, after = ptx[:first], ptx[first:]
    assert before.count("mbarrier.init") == 7
    assert before.count("bar.sync") == 1
    assert before.rindex("mbarrier.init") < before.index("bar.sync")
    assert "mbarrier.init" not in after
