"""Skip what needs an NVIDIA GPU where there is none, and the nightly matrix where it is not asked for."""

from functools import cache

import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.driver import driver


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --nightly."""
    parser.addoption("--nightly", action="store_true", help="run tests marked nightly too")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `nightly` unless --nightly asks for them."""
    if config.getoption("--nightly"):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


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
