from pathlib import Path

import pytest

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.driver_library import DriverLibrary

from .fake_library import fake_library


def describe(library: DriverLibrary, status: int) -> str:
    return f"{status} of {library}"


def test_a_driver_too_old_for_a_function_is_a_kernel_error(tmp_path: Path):
    path, _ = fake_library(Path(__file__).parent / "amdgpu" / "fake_hip.c", tmp_path)
    library = DriverLibrary("the driver", [path], "NO_OVERRIDE", {"hipNewest": ()}, describe, {})
    with pytest.raises(KernelError, match="the driver here is too old: it has no hipNewest"):
        library.call("hipNewest")
    with pytest.raises(CompilerBug, match="hipInit is called but has no prototype"):
        library.call("hipInit", 0)


def test_a_library_that_is_not_installed_needs_no_more_words():
    library = DriverLibrary("the driver", ["libnosuch.so.1"], "NO_OVERRIDE", {}, describe, {})
    with pytest.raises(KernelError) as error:
        library.call("hipInit", 0)
    assert str(error.value) == "the driver was not found"
