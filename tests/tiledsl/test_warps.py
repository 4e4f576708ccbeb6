"""How many threads warps have, by where an array lives."""

import numpy as np
import pytest

import tiledsl as tile

X = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("place", "threads"),
    [("emulate:sm_90a", 32), ("emulate:gfx942", 64), ("emulate:gfx1100", 32), ("host", 32)],
)
def test_warps_are_those_of_the_chip_that_a_launch_is_compiled_for(
    place: str, threads: int
) -> None:
    with tile.device(place):
        assert tile.warp_size(X) == threads


def test_what_is_no_array_has_no_warps() -> None:
    with pytest.raises(tile.KernelError, match=r"^warp_size: expected an array, found dict$"):
        tile.warp_size({})
