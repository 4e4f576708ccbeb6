"""Layouts of accesses: direction, vectors, agreement, and warps off reduced axes."""

from __future__ import annotations

import pytest
from mlir import ir

from tiledsl.dialects.layout import LinearLayout
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.coalesce import accesses, coalesced
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.layout_inference import Access
from tiledsl.transforms.tile_graph import TileGraph

from .tile_kernels import Kernel


def wanted(module: ir.Module, warps: int = 4) -> list[Access]:
    """Give what the accesses of a kernel want, in program order."""
    (kernel,) = kernels(module)
    graph = TileGraph.of(kernel)
    found = accesses(graph, AxisFacts(kernel), 32, warps)
    return [found[node] for node in graph.nodes if node in found]


def vector(layout: LinearLayout, axis: int = -1) -> int:
    return layout.contiguous_run(axis)


@pytest.mark.parametrize(("element", "width"), [("i8", 16), ("f16", 8), ("f32", 4), ("f64", 2)])
def test_a_thread_takes_16_bytes_of_consecutive_aligned_elements(element: str, width: int):
    k = Kernel(f"*{element}")
    k.load(k.pointers(k.args[0], 4096))
    (load,) = wanted(k.finish())
    assert vector(load.layout) == width
    assert load.firm


def test_a_small_tile_leaves_work_for_every_thread():
    k = Kernel("*f32")
    k.load(k.pointers(k.args[0], 256))
    (load,) = wanted(k.finish())
    assert vector(load.layout) == 2


def test_an_offset_that_is_not_aligned_narrows_the_vector():
    k = Kernel("*f32", "i32")
    base = k.addptr(k.args[0], k.constant(2, k.type("i32")))
    k.load(k.pointers(base, 4096))
    (load,) = wanted(k.finish())
    assert vector(load.layout) == 2


def test_a_mask_that_may_change_anywhere_narrows_the_vector():
    def kernel(limit_is_aligned: bool) -> ir.Module:
        k = Kernel("*f32", "i32")
        limit = k.args[1]  # a multiple of 16
        if not limit_is_aligned:
            limit = k.op("arith.addi", limit, k.constant(1, limit.type))
        mask = k.cmp(k.range(4096), k.splat(limit, 4096))
        k.load(k.pointers(k.args[0], 4096), mask)
        return k.finish()

    assert vector(wanted(kernel(True))[0].layout) == 4
    (ragged,) = wanted(kernel(False))
    assert vector(ragged.layout) == 1
    # Lanes still read neighbours.
    assert ragged.layout.flat("lane") == (1, 2, 4, 8, 16)


def test_threads_follow_memory_not_the_tile():
    k = Kernel("*f32")
    columns = k.pointers(k.args[0], 64, 128)
    k.load(k.trans(columns, 1, 0))
    (load,) = wanted(k.finish())
    assert vector(load.layout, 0) == 4
    assert vector(load.layout, 1) == 1


def test_descending_addresses_are_no_run():
    k = Kernel("*f32")
    last = k.splat(k.constant(1023, k.type("i32")), 1024)
    k.load(k.addptr(k.splat(k.args[0], 1024), k.op("arith.subi", last, k.range(1024))))
    (load,) = wanted(k.finish())
    assert not load.firm


def test_accesses_of_one_computation_agree():
    k = Kernel("*f16", "*f32")
    x = k.load(k.pointers(k.args[0], 4096))
    k.store(k.pointers(k.args[1], 4096), k.op("arith.extf", x, result=k.type("tensor<4096xf32>")))
    load, store = wanted(k.finish())
    assert load.layout == store.layout
    assert vector(load.layout) == 8


def test_very_different_sizes_meet_in_the_middle():
    k = Kernel("*i8", "*f64")
    x = k.load(k.pointers(k.args[0], 4096))
    k.store(k.pointers(k.args[1], 4096), k.op("arith.sitofp", x, result=k.type("tensor<4096xf64>")))
    load, store = wanted(k.finish())
    assert load.layout == store.layout
    assert vector(load.layout) == 4


def test_a_scattered_access_follows_the_others():
    k = Kernel("*f32", "*i32", "*f32")
    indices = k.load(k.pointers(k.args[1], 1024))
    gathered = k.load(k.addptr(k.splat(k.args[0], 1024), indices))
    k.store(k.pointers(k.args[2], 1024), gathered)
    index, gather, store = wanted(k.finish())
    assert (index.firm, gather.firm, store.firm) == (True, False, True)
    assert gather.layout == store.layout


def test_warps_keep_off_the_axis_that_is_reduced():
    def kernel(axis: int) -> ir.Module:
        k = Kernel("*f32", "*f32")
        x = k.load(k.pointers(k.args[0], 64, 512))
        k.reduce(k.op("arith.addf", x, x), axis)
        return k.finish()

    along_rows, along_columns = wanted(kernel(1))[0].layout, wanted(kernel(0))[0].layout
    assert all(basis[1] == 0 for basis in along_rows.bases["warp"])
    assert all(basis[0] == 0 for basis in along_columns.bases["warp"])


def test_threads_without_elements_hold_copies():
    layout = coalesced((4, 2), 32, 4, 4, (1, 0))
    assert (layout.lanes, layout.warps, layout.registers) == (32, 4, 1)
    assert layout.is_surjective
