"""Skip what needs an NVIDIA GPU where there is none, and the nightly matrix where it is not asked for."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import settings

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.driver import driver


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --nightly and --compare-emulator."""
    parser.addoption("--nightly", action="store_true", help="run tests marked nightly too")
    parser.addoption(
        "--compare-emulator",
        action="store_true",
        help="run the kernel suite's launches on CUDA on the PTX emulator too, and compare memory",
    )


COMPARED = pytest.StashKey[Counter[str]]()
"""How many launches of --compare-emulator ended in which way."""


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count; draw the same examples in every run, except where new ones are asked for.

    New ones are drawn with --nightly, --hypothesis-seed and --hypothesis-profile: a check of a
    change then fails because of that change.
    """
    config.stash[COMPARED] = Counter()
    settings.register_profile("repeatable", derandomize=True)
    new = ("--nightly", "--hypothesis-seed", "--hypothesis-profile")
    if not any(config.getoption(option, None) for option in new):
        settings.load_profile("repeatable")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this worker, if one did, what was counted."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["compared"] = dict(session.config.stash[COMPARED])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker counted."""
    output: dict[str, Any] = getattr(node, "workeroutput", {})
    node.config.stash[COMPARED].update(output.get("compared", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was counted."""
    counts = config.stash[COMPARED]
    if counts:
        told = ", ".join(f"{count} {how}" for how, count in counts.most_common())
        terminalreporter.write_line(f"launches on the device and the emulator: {told}")


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
