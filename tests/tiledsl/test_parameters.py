"""Which parameters a kernel has, and which of them are constexprs."""

from __future__ import annotations

from typing import Any, ForwardRef

import pytest

import tiledsl as tile
from tiledsl.parameters import parameters_of


@pytest.mark.parametrize(
    "annotation",
    [tile.constexpr, "tile.constexpr", "'constexpr'", "t.constexpr", ForwardRef("tile.constexpr")],
    ids=str,
)
def test_a_constexpr_is_one_however_its_annotation_is_kept(annotation: object) -> None:
    def kernel(x: Any, n: int, BLOCK: Any = 3) -> None: ...

    kernel.__annotations__["BLOCK"] = annotation
    found = parameters_of(kernel)
    assert [p.name for p in found] == ["x", "n", "BLOCK"]
    assert [p.constexpr for p in found] == [False, False, True]
    assert found[2].default == 3


def test_annotations_that_do_not_resolve_are_no_constexprs() -> None:
    space: dict[str, Any] = {}
    exec("from __future__ import annotations\ndef kernel(x: Nowhere, y: tile.Nothing): ...", space)
    assert [p.constexpr for p in parameters_of(space["kernel"])] == [False, False]
