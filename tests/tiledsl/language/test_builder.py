"""The builder: regions that stand nowhere yet, and values that end with them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tiledsl.language.traced import traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import bool_, int32
from tiledsl.language.builder import current, is_tracing
from tiledsl.language.types import tile_of
from tiledsl.language.value import constant, wrap


def test_an_op_takes_regions_that_were_filled_before() -> None:
    def chosen(c: Any, x: Any) -> Any:
        builder = current()
        sides = []
        for n in (1, 2):
            region = builder.open("a side")
            result = x + n
            builder.create("scf.yield", [result.handle], [])
            assert builder.depth == 1
            assert builder.close() is region
            with pytest.raises(KernelError, match="made in a side that has ended"):
                _ = result.handle
            sides.append(region)
        op = builder.structured("scf.if", [c.handle], [tile_of(int32, ())], sides)
        assert builder.depth == 0
        return wrap(op.results[0], int32, ())

    text = str(traced(chosen, bool_, int32))
    assert text.count("scf.yield") == 2


def test_a_region_may_be_poured_into_the_one_around_it() -> None:
    def poured(x: Any) -> Any:
        builder = current()
        builder.open("a test")
        inner = x + 1
        builder.splice(builder.close())
        assert inner.region.root is builder.region
        return inner * 2

    assert "scf" not in str(traced(poured, int32))


def test_what_was_left_open_is_dropped() -> None:
    def dropped(x: Any) -> Any:
        builder = current()
        depth = builder.depth
        builder.open("one")
        builder.open("two")
        _ = x + 41
        builder.rewind(depth)
        return x + constant(2, int32)

    text = str(traced(dropped, int32))
    assert "41" not in text
    assert not is_tracing()


def test_the_body_of_the_kernel_is_not_closed() -> None:
    with pytest.raises(RuntimeError):
        traced(lambda: current().close())
