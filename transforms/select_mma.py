"""Choose for each dot a matrix instruction and how the warps share the tile.

The table of instructions is the target's (`mma_table`); the first that takes the operands' types
and fits into the tile is taken, as it is or swapped. Where none takes the types, the operands are
cast to the next types that represent them exactly (fp8 to f16 or bf16), or the accumulator to f32;
where none fits, the dot stays as it is and will be multiplied by plain FMAs.

Warps share the accumulator in pieces as square as can be, because each loads its rows of a and
columns of b; but where the result becomes the left operand of another dot they share rows only, so
that it need not change warps on its way.

An instruction that reads tf32 in shared memory wants k contiguous there. A left operand that is
loaded as a box with m contiguous it gets from registers, and then the rows need not be in order:
they are spread so that lanes read the box from all banks (`Fragments.spread_rows`). The result
pays for that, which is stored from the same rows, so a product outside of loops does without; and
so does one whose accumulator must lie like another product's.

`precision = "tf32x3"` is three tf32 products of the operands' high and low parts here, and operands
that an instruction would cut to tf32 are rounded (`tf32`).

Before: a `tile` module.
After: the same, dots with an instruction saying so (`dot_layouts.record`).

    %r = "tile.dot"(%a, %b, %c) {precision = "ieee"} : (tensor<64x64xf16>, ...) -> tensor<64x64xf32>
becomes
    %r = "tile.dot"(%a, %b, %c) {precision = "ieee", tgpu.instruction = "mma.m16n8k16.f16.f32",
                                 tgpu.layouts = ["register=...", ...]} : ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product
from typing import Any

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_shape import register_map
from tiledsl.dialects.types import bit_width, element_of, like, shape_of
from tiledsl.transforms.dot_layouts import record
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.layout_inference import Product
from tiledsl.transforms.mma_table import Instruction, Table
from tiledsl.transforms.rewrite import build, replace_uses_except, retype
from tiledsl.transforms.tf32 import round_operands, split_product
from tiledsl.transforms.tile_graph import Node, TileGraph

_FP8 = ("f8E4M3FN", "f8E5M2")
_WIDER = {
    **{(fp8, "f16"): "f16" for fp8 in _FP8},
    **{(fp8, "bf16"): "bf16" for fp8 in _FP8},
    **{(narrow, "f32"): "f32" for narrow in (*_FP8, "f16", "bf16")},
}
"""Casts between element types that keep every value."""


@dataclass(frozen=True)
class Choice:
    """An instruction for a dot.

    Attributes:
        instruction: The instruction.
        types: The element types that it takes.
        product: Its layouts over the tile and the warps.
        copies: Warps that compute the same elements.
    """

    instruction: Instruction
    types: tuple[str, str, str]
    product: Product
    copies: int


class Loaded(Enum):
    """How an operand comes from global memory.

    By pointers it may be copied to shared memory past the registers, but not rounded on the way.
    """

    NOT = auto()
    BY_POINTERS = auto()
    BOX = auto()
    BOX_TURNED = auto()

    def stays(self, instruction: Instruction) -> bool:
        """Whether an instruction that can read shared memory should read it there."""
        if instruction.cuts:
            return self is Loaded.BOX
        return self is not Loaded.NOT


@dataclass(frozen=True)
class Setting:
    """What is around a dot.

    Attributes:
        loaded: How its left operand is loaded.
        chained: Whether its result is another dot's left operand, or its left operand a result.
        joined: Whether it adds to another dot's sums, or another to its own.
        repeated: Whether it is in a loop.
    """

    loaded: Loaded
    chained: bool
    joined: bool
    repeated: bool

    def spreads(self, instruction: Instruction) -> bool:
        """Whether rows in another order are read faster (`Fragments.spread_rows`), at no loss."""
        across = instruction.cuts and self.loaded is Loaded.BOX_TURNED
        return across and self.repeated and not (self.chained or self.joined)


def select_mma(module: ir.Module, *, table: Table[Any], num_warps: int) -> None:
    """Run the pass described above on `module`, in place."""
    for kernel in kernels(module):
        for _, dot in _dots(TileGraph.of(kernel)):
            if dot.precision == "tf32x3":
                split_product(dot, table)
        cutting: list[tile.DotOp] = []
        for dot, choice in _choose(TileGraph.of(kernel), table, num_warps):
            _retype(dot, choice.types)
            record(dot, choice.instruction.name, choice.product)
            if choice.instruction.cuts:
                cutting.append(dot)
        round_operands(cutting)


def _dots(graph: TileGraph) -> list[tuple[Node, tile.DotOp]]:
    return [(node, node.op) for node in graph.nodes if isinstance(node.op, tile.DotOp)]


def _choose(graph: TileGraph, table: Table[Any], num_warps: int) -> list[tuple[tile.DotOp, Choice]]:
    """Choose for every dot that an instruction fits."""
    links = list(_links(graph))
    chained = {node for link in links for node in link}
    joined = {node for pair in _sums(graph) for node in pair}
    dots = _dots(graph)
    options: dict[Node, Sequence[Choice]] = {}
    for node, op in dots:
        loaded, repeated = _loaded(graph, node), node.depth > 0
        setting = Setting(loaded, node in chained, node in joined, repeated)
        options[node] = _options(op, setting, table, num_warps)
    for link in links:
        options.update(_agree(*link, options))
    return [(op, options[node][0]) for node, op in dots if options[node]]


def _loaded(graph: TileGraph, node: Node) -> Loaded:
    """Return how a dot's left operand is loaded, if it is just that, perhaps transposed."""
    maker, turned = graph.maker.get(node.operands[0]), False
    if maker is not None and isinstance(maker.op, tile.TransOp):
        maker, turned = graph.maker.get(maker.operands[0]), True
    match maker.op if maker is not None else None:
        case tile.LoadOp():
            return Loaded.BY_POINTERS
        case tile.DescriptorLoadOp():
            return Loaded.BOX_TURNED if turned else Loaded.BOX
        case _:
            return Loaded.NOT


def _links(graph: TileGraph) -> Iterator[tuple[Node, Node]]:
    """Find pairs of dots of which the first's result reaches the second's left operand."""
    for node, _ in _dots(graph):
        for before in graph.behind(node.operands[0]):
            if isinstance(before.op, tile.DotOp):
                yield before, node


def _sums(graph: TileGraph) -> Iterator[tuple[Node, Node]]:
    """Find pairs of dots of which the second adds to the first's sums, also in a later trip."""
    for node, _ in _dots(graph):
        seen: set[ir.Value] = set()
        work = [node.operands[2]]
        while work:
            value = work.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in graph.join_of:
                work += graph.join_of[value].sources
            before = graph.maker.get(value)
            if before is not None and before.transparent:
                work += before.operands
            elif before is not None and before is not node and isinstance(before.op, tile.DotOp):
                yield before, node


def _agree(
    first: Node, second: Node, options: Mapping[Node, Sequence[Choice]]
) -> dict[Node, list[Choice]]:
    """Choose instructions such that the first's result is the second's operand as it lies.

    Or nearly so: where the most lanes hold the rows that they will want. Two turned products agree
    better than a turned and a plain one: sums of both are scaled by rows.
    """
    pairs = [
        (left, right)
        for left, right in product(options[first], options[second])
        if right.product.a is not None and left.product.acc.shape == right.product.a.shape
    ]
    for left, right in pairs:
        assert right.product.a is not None
        if register_map(left.product.acc, right.product.a) is not None:
            return {first: [left], second: [right]}
    if not pairs:
        return {}
    left, right = min(pairs, key=lambda pair: _moved(*pair))
    return {first: [left], second: [right]} if _moved(left, right) < _moved(*pairs[0]) else {}


def _moved(first: Choice, second: Choice) -> tuple[int, int]:
    """Give how many bits of threads' numbers mean other elements of a result and an operand.

    And then the same of both results.
    """
    acc, wanted = first.product.acc, second.product

    def differing(other: LinearLayout | None) -> int:
        assert other is not None
        pairs = ((acc.bases[name], other.bases[name]) for name in ("lane", "warp"))
        return sum(a != b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))

    return differing(wanted.a), differing(wanted.acc)


def _options(op: tile.DotOp, setting: Setting, table: Table[Any], num_warps: int) -> list[Choice]:
    """Give the instructions that fit a dot, best first.

    One that gives every warp something of its own comes before a better one that does not.

    Args:
        op: The dot.
        setting: What is around it.
        table: The instructions.
        num_warps: Warps of a program.
    """
    shapes = [shape_of(value.type) for value in (op.a, op.b, op.acc)]
    (*_, m, k), (*_, n) = shapes[0], shapes[1]
    unsigned = op.a_unsigned or op.b_unsigned
    found: list[Choice] = []
    for types in _types(op):
        some: list[Choice] = []
        for instruction in table.matching(*types, op.precision, unsigned):
            fragments = instruction.fragments
            fits = m >= instruction.m and n >= instruction.n and k >= instruction.depth
            if not fits or fragments.acc.warps > num_warps:
                continue
            if instruction.from_shared and len(shapes[0]) > 2:
                continue
            warps = share_warps(m, n, instruction, num_warps, setting.chained)
            shared = instruction.from_shared
            stays = shared and setting.loaded.stays(instruction)
            if setting.spreads(instruction):
                fragments = fragments.spread_rows()
            a = None if stays else fragments.tile("a", shapes[0], warps)
            b = None if shared else fragments.tile("b", shapes[1], warps)
            acc = fragments.tile("acc", shapes[2], warps)
            copies = copies_of(m, n, instruction, warps)
            some.append(Choice(instruction, types, Product(a, b, acc), copies))
        found += sorted(some, key=lambda choice: choice.copies)
    return found


def _piece(m: int, n: int, instruction: Instruction, warps: tuple[int, int]) -> tuple[int, int]:
    """Give the rows and columns that one warp computes."""
    least = instruction.fragments.acc.warps
    return max(instruction.m // least, m // warps[0]), max(instruction.n, n // warps[1])


def copies_of(m: int, n: int, instruction: Instruction, warps: tuple[int, int]) -> int:
    """Give how many warps compute each element of an m x n accumulator."""
    return math.prod(_piece(m, n, instruction, warps)) * math.prod(warps) // (m * n)


def share_warps(
    m: int, n: int, instruction: Instruction, warps: int, chained: bool
) -> tuple[int, int]:
    """Give how many warps share an m x n accumulator along m and along n.

    As few as can be hold copies; then, unless rows only are wanted (`chained`), the piece of one
    warp has the least circumference, which is what it loads for each step along k. Instructions
    that read shared memory by themselves read least where they are widest: they share rows too.
    """
    rows = chained or instruction.from_shared

    def cost(split: tuple[int, int]) -> tuple[int, int, int]:
        around = -split[0] if rows else sum(_piece(m, n, instruction, split))
        return copies_of(m, n, instruction, split), around, -split[0]

    least = instruction.fragments.acc.warps
    splits = [(1 << i, warps >> i) for i in range(warps.bit_length()) if least <= 1 << i]
    return min(splits, key=cost)


def _types(op: tile.DotOp) -> Iterator[tuple[str, str, str]]:
    """Give the element types of a, b and the accumulator to try, the operands' own first."""
    a, b, acc = (str(element_of(value.type)) for value in (op.a, op.b, op.acc))
    pairs = [(a, b)]
    for wide in ("f16", "bf16", "f32"):
        if all(one == wide or (one, wide) in _WIDER for one in (a, b)) and (wide, wide) != (a, b):
            pairs.append((wide, wide))
    for one in pairs:
        yield *one, acc
        if (acc, "f32") in _WIDER:
            yield *one, "f32"


def _retype(op: tile.DotOp, types: tuple[str, str, str]) -> None:
    """Cast operands to `types`, and the result back."""
    operation = op.operation
    before = ir.InsertionPoint(operation)
    for i, (value, text) in enumerate(zip(list(operation.operands), types, strict=True)):
        if str(element_of(value.type)) != text:
            operation.operands[i] = _cast(value, ir.Type.parse(text, value.context), before)
    old = op.result.type
    if operation.operands[2].type != old:
        retype(op.result, operation.operands[2].type)
        after = ir.InsertionPoint.after(operation)
        narrow = tile.CastOp.build(op.result, results=[old], loc=operation.location, ip=after)
        replace_uses_except(op.result, narrow.result, narrow.operation)


def _cast(value: ir.Value, element: ir.Type, ip: ir.InsertionPoint) -> ir.Value:
    """Cast to a float type that has every value of the old one."""
    type_ = like(value.type, element)
    loc = value.location
    if bit_width(element) > bit_width(value.type):
        return build("arith.extf", [value], type_, ip, loc)
    return tile.CastOp.build(value, results=[type_], loc=loc, ip=ip).result
