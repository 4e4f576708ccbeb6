"""Layouts by name."""

from mlir import ir

from tiledsl.dialects.context import context, parse
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.layouts import Layouts


def test_equal_layouts_share_a_name_and_different_ones_do_not() -> None:
    module = parse("module {}")
    layouts = Layouts(module)
    first = blocked((128,), (4,), (32,), (1,))
    assert layouts.name(first, "blocked") == "blocked0"
    assert layouts.name(blocked((128,), (4,), (32,), (1,)), "other") == "blocked0"
    assert layouts.name(blocked((128,), (1,), (32,), (1,)), "blocked") == "blocked1"
    assert layouts["blocked0"] == first
    assert len(list(module.body.operations)) == 2


def test_names_read_back_from_the_module() -> None:
    module = parse("module {}")
    layout = blocked((64, 32), (1, 8), (8, 4), (4, 1))
    with context(), ir.Location.unknown():
        type_ = Layouts(module).apply(ir.Type.parse("tensor<64x32xf16>"), layout)
    again = Layouts(parse(str(module)))
    assert again.of(type_) == layout
