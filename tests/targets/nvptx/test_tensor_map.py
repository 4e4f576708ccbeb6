from dataclasses import replace
from typing import Any

import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.tensor_map import TensorMap

GOOD = TensorMap("bf16", 4096, (1000, 500), (2000,), (64, 128), swizzle=128)


def test_a_box_knows_its_bytes():
    assert GOOD.box_bytes == 64 * 128 * 2
    assert GOOD.element_bytes == 2


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"element": "i4"}, "an element type among i8, ui8,"),
        ({"shape": ()}, "one to five dimensions"),
        ({"strides": ()}, "a stride for each dimension but the first"),
        ({"box": (64,)}, "a box of the tensor's rank"),
        ({"address": 8}, "an address that is a multiple of 16"),
        ({"shape": (0, 5)}, "1 to 2**32 elements a dimension"),
        ({"strides": (2002,)}, "strides that are multiples of 16 below 2**40"),
        ({"box": (64, 257)}, "a box of 1 to 256 elements a side"),
        ({"box": (4, 64)}, "a box whose rows are multiples of 16 bytes"),
        ({"swizzle": 48}, "a swizzle of 0, 32, 64 or 128 bytes"),
        ({"box": (128, 64)}, "box rows no longer than the swizzle"),
        ({"l2_promotion": 5}, "an L2 promotion of 0, 64, 128 or 256 bytes"),
    ],
)
def test_each_rule_is_named_when_broken(change: dict[str, Any], wanted: str):
    with pytest.raises(KernelError) as error:
        replace(GOOD, **change)
    assert str(error.value).startswith(f"expected a TMA descriptor with {wanted}")
