from __future__ import annotations

import pytest

import tiledsl as tile
from tiledsl.device import normalize
from tiledsl.dialects.diagnostics import KernelError


@pytest.mark.parametrize(
    ("spec", "spelled"),
    [("cpu", "host"), ("cuda", "cuda:0"), ("hip:1", "hip:1"), ("emulate:gfx942", "emulate:gfx942")],
)
def test_a_device_has_one_spelling(spec: str, spelled: str) -> None:
    assert normalize(spec) == spelled


@pytest.mark.parametrize("spec", [None, 0, "", "gpu", "host:1", "emulate:sm_1"])
def test_what_is_no_device_says_so(spec: str) -> None:
    with pytest.raises(KernelError, match="expected"), tile.device(spec):
        pass
