"""Skip what needs an NVIDIA GPU where there is none."""

from functools import cache

import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.driver import driver


@cache
def _why_no_gpu() -> str | None:
    try:
        driver().devices()
    except KernelError as error:
        return error.message
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where the driver shows no device."""
    if item.get_closest_marker("gpu") and (why := _why_no_gpu()):
        pytest.skip(why)
