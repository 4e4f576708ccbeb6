"""Build the fake drivers, C programs beside the tests, and load each test's own copy."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def _built(source: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake driver with")
    folder = Path(tempfile.mkdtemp(prefix="tiledsl-fake-"))
    library = folder / f"lib{source.stem}.so"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"]
    subprocess.run([*command, library, source], check=True)
    return library


def fake_library(source: Path, folder: Path) -> tuple[str, ctypes.CDLL]:
    """Return the path of a fresh copy in `folder`, whose state nobody shares, and a handle."""
    path = folder / f"lib{source.stem}.so"
    shutil.copy(_built(source), path)
    return str(path), ctypes.CDLL(str(path))
