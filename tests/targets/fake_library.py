"""Build the fake drivers, C programs beside the tests."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def built_library(source: Path, name: str) -> Path:
    """Return a shared library that is built once a process, alone in its folder.

    Args:
        source: A C program.
        name: What the library is called, as a file and for the loader.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake driver with")
    library = Path(tempfile.mkdtemp(prefix="tiledsl-fake-")) / name
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, f"-Wl,-soname,{name}", "-o", library, source], check=True)
    return library


def fake_library(source: Path, folder: Path) -> tuple[str, ctypes.CDLL]:
    """Return the path of a fresh copy in `folder`, whose state nobody shares, and a handle."""
    built = built_library(source, f"lib{source.stem}.so")
    path = folder / built.name
    shutil.copy(built, path)
    return str(path), ctypes.CDLL(str(path))
