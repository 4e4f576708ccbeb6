"""Let tiles adopt the layout that all their users want, where that moves fewer bytes.

Forward inference gives what is computed from a load the load's layout, and every use in another
layout a conversion. Where several tiles made of one loaded tile are all wanted elsewhere (three
products of its high and low parts, say), it is better to convert the loaded tile once and to
compute the others where they are wanted.

So: find the transparent ops all of whose users want one and the same other layout. Connected ones
form a group; a group adopts the wanted layouts if what must then be converted on the way in costs
less than what was converted on the way out.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects.layout import LinearLayout
from tiledsl.transforms.layout_cost import conversion_cost
from tiledsl.transforms.layout_inference import Inference
from tiledsl.transforms.layout_rules import backward
from tiledsl.transforms.tile_graph import Node

_Request = tuple[ir.Value, LinearLayout]


def adopt(inference: Inference) -> None:
    """Change the decision of `inference` as described above."""
    wanted = _wanted(inference)
    for group in _groups(inference, wanted):
        inside = {value for node in group for value in node.results}
        before = _requests_from_outside(inference, inside)
        before |= _requests_to_outside(inference, group, inside, {})
        after = _requests_to_outside(inference, group, inside, wanted)
        if _cost(inference, after) < _cost(inference, before):
            for node in group:
                for value in node.results:
                    inference.layouts[value] = wanted[node]


def _wanted(inference: Inference) -> dict[Node, LinearLayout]:
    """Give, for each op whose results are all wanted in one other layout, that layout."""
    graph = inference.graph
    asked: dict[ir.Value, set[LinearLayout]] = {}
    wanted: dict[Node, LinearLayout] = {}
    for join in graph.joins:
        for value in join.sources:
            asked.setdefault(value, set()).add(inference.layouts[join.targets[0]])
    for node in reversed(graph.nodes):
        if node.free:
            continue
        needs = inference.needs(node)
        some = [asked.get(value, set[LinearLayout]()) for value in node.results]
        if node.transparent and len(set[LinearLayout]().union(*some)) == 1 and all(some):
            (layout,) = some[0]
            before = backward(node.op, layout)
            if layout != inference.layouts[node.results[0]] and before is not None:
                wanted[node] = layout
                needs = [before] * len(node.operands)
        for value, layout in zip(node.operands, needs, strict=True):
            asked.setdefault(value, set()).add(layout)
    return wanted


def _groups(inference: Inference, wanted: dict[Node, LinearLayout]) -> list[list[Node]]:
    """Give the connected groups of the ops in `wanted`."""
    group_of: dict[Node, list[Node]] = {}
    for node in wanted:
        group = group_of.setdefault(node, [node])
        for value in node.operands:
            maker = inference.graph.maker.get(value)
            if maker is None or maker not in wanted:
                continue
            other = group_of.setdefault(maker, [maker])
            if other is not group:
                group += other
                group_of.update(dict.fromkeys(other, group))
    return list({id(group): group for group in group_of.values()}.values())


def _requests_from_outside(inference: Inference, inside: set[ir.Value]) -> set[_Request]:
    """Give what users outside a group ask for of its tiles."""
    graph = inference.graph
    found: set[_Request] = set()
    for node in graph.nodes:
        if node.free or any(value in inside for value in node.results):
            continue
        if any(value in inside for value in node.operands):
            needs = zip(node.operands, inference.needs(node), strict=True)
            found.update(request for request in needs if request[0] in inside)
    for join in graph.joins:
        layout = inference.layouts[join.targets[0]]
        found.update((value, layout) for value in join.sources if value in inside)
    return found


def _requests_to_outside(
    inference: Inference,
    group: list[Node],
    inside: set[ir.Value],
    wanted: dict[Node, LinearLayout],
) -> set[_Request]:
    """Give what a group asks for of tiles outside, in the layouts `wanted` or the present ones."""
    found: set[_Request] = set()
    for node in group:
        needs = inference.needs(node)
        if node in wanted:
            before = backward(node.op, wanted[node])
            assert before is not None  # else the op would not be in `wanted`
            needs = [before] * len(node.operands)
        requests = zip(node.operands, needs, strict=True)
        found.update(request for request in requests if request[0] not in inside)
    return found


def _cost(inference: Inference, requests: set[_Request]) -> float:
    return sum(
        conversion_cost(inference, value, layout)
        for value, layout in requests
        if value in inference.layouts
    )
