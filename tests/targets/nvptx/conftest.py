"""Run the tests that take `fake`, the fake NVIDIA driver, in one process of their own.

cuda-bindings finds the driver once a process: one that has found the fake could see neither a real
GPU any more nor that there is none. So the first such test starts pytest on all of them where the
fake is the system's libcuda.so.1, and each then reports what it did there.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from tiledsl.targets.nvptx.cuda_library import CudaLibrary
from tiledsl.targets.nvptx.driver import CudaDriver

from ..fake_library import built_library
from .fake_driver import Fake, record_launches

_HERE = Path(__file__).parent
_REPORTS = "TILEDSL_TEST_REPORTS"
"""Names, in the process that has the fake, the file that takes its reports."""


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A driver on the fake library, as in a new process."""
    if _REPORTS not in os.environ:
        pytest.skip("no C compiler to build the fake driver with")
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_reset()
    made = Fake(CudaDriver(CudaLibrary()), library)
    with record_launches(made):
        yield made
    assert library.fake_depth() == 0, "a context was left current"
    assert library.fake_live_marks() == 0, "a stream or an event was left"


class _Reporter:
    """Writes each report as a line of JSON."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._config = config
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        made: Any = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        with self._file.open("a") as lines:
            lines.write(json.dumps(made) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Report to the process that started this one, if one did."""
    if _REPORTS in os.environ:
        config.pluginmanager.register(_Reporter(config, Path(os.environ[_REPORTS])))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Report what a test on the fake driver did in its process."""
    if _REPORTS in os.environ or not _takes_fake(item) or not shutil.which("gcc"):
        return None
    items = tuple(one.nodeid for one in item.session.items if _takes_fake(one))
    lines, output = _run(items, item.config.rootpath)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for line in lines.get(item.nodeid, []):
        report: Any = item.config.hook.pytest_report_from_serializable(
            config=item.config, data=json.loads(line)
        )
        item.ihook.pytest_runtest_logreport(report=report)
    if item.nodeid not in lines:
        lost = pytest.TestReport(item.nodeid, item.location, {}, "failed", output, "call")
        item.ihook.pytest_runtest_logreport(report=lost)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _takes_fake(item: pytest.Item) -> bool:
    names = cast("list[str]", getattr(item, "fixturenames", []))
    return "fake" in names and item.path.is_relative_to(_HERE)


@cache
def _run(items: tuple[str, ...], root: Path) -> tuple[dict[str, list[str]], str]:
    """Run tests on the fake driver; return the reports of each, and all that was printed."""
    library = built_library(_HERE / "fake_cuda.c", "libcuda.so.1")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "reports")
        file.touch()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *items],
            cwd=root,
            env={**kept, "LD_LIBRARY_PATH": str(library.parent), _REPORTS: str(file)},
            capture_output=True,
            text=True,
            check=False,
        )
        reports: dict[str, list[str]] = {}
        for line in file.read_text().splitlines():
            reports.setdefault(json.loads(line)["nodeid"], []).append(line)
    return reports, done.stdout + done.stderr
