"""Configurations of a kernel."""

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


def test_blocks_of_a_program_are_an_option_like_others() -> None:
    assert "num_ctas" not in tile.Config({}, num_ctas=1).all_kwargs()
    assert tile.Config({}, num_ctas=2).all_kwargs()["num_ctas"] == 2
    assert repr(tile.Config({}, num_ctas=2)) == "num_warps=4, num_stages=3, num_ctas=2"
