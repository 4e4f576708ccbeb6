"""Configurations of a kernel."""

import pytest

import tiledsl as tile


def test_a_configuration_gives_parameters_and_options() -> None:
    config = tile.Config({"BLOCK": 128}, num_warps=8, maxnreg=64, fast_math=True)
    assert config.all_kwargs() == {
        "BLOCK": 128,
        "num_warps": 8,
        "num_stages": 3,
        "maxnreg": 64,
        "fast_math": True,
    }
    assert repr(config) == "BLOCK=128, num_warps=8, num_stages=3, maxnreg=64, fast_math=True"
    assert "maxnreg" not in tile.Config({}).all_kwargs()


def test_programs_do_not_share_their_work() -> None:
    assert tile.Config({}, num_ctas=1).num_ctas == 1
    with pytest.raises(tile.KernelError, match="Config: expected num_ctas to be 1, found 2"):
        tile.Config({}, num_ctas=2)
