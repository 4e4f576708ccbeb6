"""Keeping aside what arrays hold."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from typing import Any

import numpy as np
import pytest

from tests.tiledsl.test_arrays import ThroughDLPack
from tiledsl import contents, launch
from tiledsl.dialects.diagnostics import KernelError


@pytest.mark.parametrize("wrap", [lambda a: a, ThroughDLPack])
def test_what_an_array_held_is_put_back_as_often_as_asked(wrap: Any) -> None:
    base = np.arange(24, dtype=np.int16).reshape(4, 6)
    for view in (base, base[:, 1:3], base[::-1] if wrap is not ThroughDLPack else base, base[:0]):
        restore = contents.keep(wrap(view))
        for _ in range(2):
            view[...] = -1
            restore()
            np.testing.assert_array_equal(base, np.arange(24).reshape(4, 6))


@pytest.mark.parametrize("wrap", [lambda a: a, ThroughDLPack])
def test_zero_sets_elements_and_leaves_gaps(wrap: Any) -> None:
    base = np.ones((2, 4), np.float32)
    contents.zero(wrap(base[:, ::2]))
    np.testing.assert_array_equal(base, [[0, 1, 0, 1]] * 2)


class OnCuda:
    """Memory of the process that passes for a device's."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}

    __cuda_array_interface__: dict[str, Any]


def test_a_device_array_goes_through_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnCuda, "__cuda_array_interface__", None, raising=False)
    monkeypatch.setattr(launch, "driver_of", lambda place: launch._driver("host"))  # pyright: ignore
    array = np.arange(6, dtype=np.float32)[1:]
    restore = contents.keep(OnCuda(array))
    array[:] = 7
    restore()
    np.testing.assert_array_equal(array, [1, 2, 3, 4, 5])
    with pytest.raises(KernelError, match="of torch, NumPy or CuPy to set to zero, found OnCuda"):
        contents.zero(OnCuda(array))


def test_torch_tensors_keep_gaps_and_what_a_view_holds_twice() -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    for view in (base[:, 1:3], base[0].expand(3, 4), base[:0], base.requires_grad_()):
        before = base.detach().clone()
        restore = contents.keep(view)
        base.detach().zero_()
        restore()
        if view.numel():  # of nothing there is nothing to restore
            assert torch.equal(base[0].detach(), before[0])
        base.detach().copy_(before)
    contents.zero(base)
    assert not base.any()
