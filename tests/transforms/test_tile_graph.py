"""The graph of a function's tiles: what is free, what joins, what lies behind a value."""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.tile_graph import TileGraph

from .tile_kernels import Kernel, attention, matmul

_ALIVE: list[ir.Module] = []
"""An op does not keep its module alive."""


def graph_of(module: ir.Module) -> TileGraph:
    _ALIVE.append(module)
    (kernel,) = kernels(module)
    return TileGraph.of(kernel)


def test_addresses_are_free_and_what_is_loaded_is_not():
    k = Kernel("*f32")
    pointers = k.pointers(k.args[0], 64)
    loaded = k.load(pointers)
    total = k.op("arith.addf", loaded, loaded)
    graph = graph_of(k.finish())
    assert graph.is_free(pointers)
    assert not graph.is_free(loaded)
    assert not graph.is_free(total)


def test_what_a_loop_carries_is_one_join():
    graph = graph_of(matmul(64, 64, 32))
    assert len(graph.joins) == 3  # the sum and two tiles of pointers
    for join in graph.joins:
        assert len(join.targets) == len(join.sources) == 2
        for (op, place), source in zip(join.edges, join.sources, strict=True):
            assert op.operands[place] == source
        assert not any(graph.is_free(target) for target in join.targets)


def test_scalars_are_no_part_of_it():
    k = Kernel("*f32", "i32")
    k.loop(k.args[1], [k.args[1]], lambda i, carried: [k.op("arith.addi", carried[0], i)])
    graph = graph_of(k.finish())
    assert graph.nodes == []
    assert graph.joins == []


def test_the_results_of_a_branch_join():
    k = Kernel("*f32", "i1")
    a = k.load(k.pointers(k.args[0], 64))
    (result,) = k.branch(k.args[1], lambda: [a], lambda: [k.constant(0, a.type)], [a.type])
    graph = graph_of(k.finish())
    assert graph.join_of[result].targets == [result]
    assert graph.join_of[result].sources[0] == a


def test_the_second_product_of_attention_has_the_first_behind_its_left_operand():
    graph = graph_of(attention(64, 64, 64))
    first, second = (node for node in graph.nodes if isinstance(node.op, tile.DotOp))
    assert first in graph.behind(second.operands[0])
    assert second.depth == first.depth == 1
    assert all(node is not first for node in graph.behind(second.operands[1]))
