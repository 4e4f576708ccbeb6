"""ptxas's options, as the driver's own compiler takes them."""

import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.driver_options import driver_options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {}),
        ("-v", {}),
        ("-O1", {"OPTIMIZATION_LEVEL": 1}),
        ("-O 0 --verbose", {"OPTIMIZATION_LEVEL": 0}),
        ("--opt-level=2", {"OPTIMIZATION_LEVEL": 2}),
        ("--maxrregcount 64", {"MAX_REGISTERS": 64}),
        ("-maxrregcount=64 -lineinfo", {"MAX_REGISTERS": 64, "GENERATE_LINE_INFO": 1}),
        ("--generate-line-info", {"GENERATE_LINE_INFO": 1}),
        ("-g", {"GENERATE_DEBUG_INFO": 1}),
    ],
)
def test_options_that_the_driver_has_are_translated(options: str, expected: dict[str, int]) -> None:
    assert driver_options(options) == expected


@pytest.mark.parametrize("options", ["--fmad=false", "-O9", "--maxrregcount", "-O3 -Xfoo", "'-O1"])
def test_others_are_told(options: str) -> None:
    with pytest.raises(KernelError, match="as ptxas was not found") as raised:
        driver_options(options)
    assert repr(options) in raised.value.message
    assert raised.value.hint == "install nvidia-cuda-nvcc, or set TILEDSL_PTXAS to a ptxas"
