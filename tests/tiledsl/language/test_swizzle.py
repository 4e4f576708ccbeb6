"""Orders of programs."""

from __future__ import annotations

import numpy as np

from tests.tiledsl.language.traced import evaluated
from tiledsl.language.swizzle import swizzle2d


def test_groups_of_rows_go_column_by_column() -> None:
    order = np.zeros((4, 4), int)
    for i in range(4):
        for j in range(4):
            order[swizzle2d(i, j, 4, 4, 2)] = i * 4 + j
    assert order.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]


def test_every_block_is_taken_once_with_a_short_last_group() -> None:
    taken = {swizzle2d(i, j, 5, 3, 2) for i in range(5) for j in range(3)}
    assert taken == {(i, j) for i in range(5) for j in range(3)}


def test_run_time_programs_get_the_same_blocks() -> None:
    i, j = (a.ravel().astype(np.int32) for a in np.meshgrid(np.arange(4), np.arange(2)))
    got = evaluated(lambda i, j, n: swizzle2d(i, j, n, 2, 3), i, j, np.int32(4))
    want = [swizzle2d(int(a), int(b), 4, 2, 3) for a, b in zip(i, j, strict=True)]
    assert list(zip(*(g.tolist() for g in got), strict=True)) == want
