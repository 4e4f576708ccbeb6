"""Give every tile a layout, and convert where a use needs another one.

At the `tile` level a tile is a value; on a GPU its elements live in the registers of many threads.
Which element lives where decides whether loads coalesce, whether a matrix instruction can take the
tile as it is, and how much data must change threads. `layout_inference` decides; this pass applies
the decision:

- Types get encodings, in place, and `tile.dot` becomes `tgpu.mma` or `tgpu.fma_dot`.
- A free tile (made of scalars and numbers) is made anew in each layout that is asked for.
- Elsewhere a `tgpu.convert_layout` is inserted. It moves to where it costs least: before casts to
  larger types, before broadcasts, out of loops that it does not depend on; and there is one for
  each tile and layout. It stands as late as it can, so that loads before it can overlap.

Before: a `tile` module; dots that `select_mma` chose an instruction for carry it.
After: the `tgpu` level. No shape op moves data between threads. The operand of a scan, and of a
reduction without a `kind`, is ordered along its axis (`ordered`). No tile is in shared memory yet.

    %v = "tile.load"(%p) : (tensor<256x!tile.ptr<f32>>) -> tensor<256xf32>
becomes
    %v = "tile.load"(%p) : (tensor<256x!tile.ptr<f32>, @layout0>) -> tensor<256xf32, @layout0>
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import default
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import shape_of, storage_bits
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.coalesce import accesses
from tiledsl.transforms.dot_layouts import INSTRUCTION, product_of, products
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.layout_adoption import adopt
from tiledsl.transforms.layout_cost import Costs
from tiledsl.transforms.layout_inference import Access, Inference
from tiledsl.transforms.layout_rules import backward
from tiledsl.transforms.rewrite import is_used, retype, sink
from tiledsl.transforms.tile_graph import Node, TileGraph

_VECTOR_BYTES = 16
"""The widest access of shared memory."""


def assign_layouts(module: ir.Module, *, num_warps: int, warp_size: int) -> None:
    """Run the pass described above on `module`, in place."""
    layouts = Layouts(module)
    for kernel in kernels(module):
        graph = TileGraph.of(kernel)
        anchors = {
            **accesses(graph, AxisFacts(kernel), warp_size, num_warps),
            **products(graph, warp_size, num_warps),
            **_boxes(graph, warp_size, num_warps),
        }
        inference = Inference(graph, anchors, warp_size, num_warps)
        inference.run()
        adopt(inference)
        _Assignment(inference, layouts).run()


def _boxes(graph: TileGraph, lanes: int, warps: int) -> dict[Node, Access]:
    """Give layouts to what loads through descriptors bring: shared memory is read well in them.

    Boxes lie there row by row, and are read, and perhaps stored again, in vectors.
    """
    found: dict[Node, Access] = {}
    for node in graph.nodes:
        if isinstance(node.op, tile.DescriptorLoadOp):
            type_ = node.results[0].type
            vector = _VECTOR_BYTES * 8 // storage_bits(type_)
            found[node] = Access(default(shape_of(type_), lanes, warps, vector), firm=False)
    return found


class _Assignment:
    """Applies a decision to the IR.

    Tiles are named by the value that they were in the graph throughout; `_made` says which value of
    the IR is such a tile in a given layout by now.
    """

    def __init__(self, inference: Inference, layouts: Layouts) -> None:
        self._inference = inference
        self._graph = inference.graph
        self._layouts = layouts
        self._costs = Costs(inference)
        self._made: dict[tuple[ir.Value, LinearLayout], ir.Value] = {}
        self._taken: set[Node] = set()
        self._converts: list[tgpu.ConvertLayoutOp] = []
        self._replaced: list[ir.OpView] = []

    def run(self) -> None:
        """Type the whole function."""
        settled = [node for node in self._graph.nodes if not node.free]
        for join in self._graph.joins:
            for target in join.targets:
                self._type(target, self._inference.layouts[target])
        needs = {node: self._inference.needs(node) for node in settled}
        for node in settled:
            for value in node.results:
                self._type(value, self._inference.layouts[value])
            self._taken.add(node)
        for node in settled:
            for place, value, layout in zip(node.places, node.operands, needs[node], strict=True):
                node.op.operation.operands[place] = self.get(value, layout)
            if isinstance(node.op, tile.DotOp):
                self._replace_dot(node.op)
        for join in self._graph.joins:
            layout = self._inference.layouts[join.targets[0]]
            for (op, place), value in zip(join.edges, join.sources, strict=True):
                op.operands[place] = self.get(value, layout)
        self._clean()

    def _type(self, value: ir.Value, layout: LinearLayout) -> None:
        retype(value, self._layouts.apply(value.type, layout))
        self._made[value, layout] = value

    def get(self, value: ir.Value, layout: LinearLayout) -> ir.Value:
        """Give the tile `value` in `layout`, making it where it is not there yet."""
        if (value, layout) not in self._made:
            node = self._graph.maker.get(value)
            if node is not None and self._costs.recompute(value, layout):
                self._recompute(node, layout)
            else:
                own = self._costs.own_layout(value)
                self._made[value, layout] = self._convert(self.get(value, own), layout)
        return self._made[value, layout]

    def _convert(self, value: ir.Value, layout: LinearLayout) -> ir.Value:
        owner = value.owner
        ip = (
            ir.InsertionPoint.at_block_begin(owner)
            if isinstance(owner, ir.Block)
            else ir.InsertionPoint.after(owner.operation)
        )
        type_ = self._layouts.apply(value.type, layout)
        made = tgpu.ConvertLayoutOp.build(value, results=[type_], loc=value.location, ip=ip)
        self._converts.append(made)
        return made.tile

    def _recompute(self, node: Node, layout: LinearLayout) -> None:
        """Make the results of an op in `layout`, by the op itself or by a copy.

        The op is transparent, or a load of free tiles.
        """
        wanted = backward(node.op, layout)
        assert wanted is not None  # `Costs.recompute` says so only where there is one
        operands = [self.get(value, wanted) for value in node.operands]
        op = node.op.operation
        if node in self._taken:
            op = op.clone(ir.InsertionPoint(op)).operation
        self._taken.add(node)
        for place, operand in zip(node.places, operands, strict=True):
            op.operands[place] = operand
        for value, result in zip(node.results, op.results, strict=True):
            retype(result, self._layouts.apply(result.type, layout))
            self._made[value, layout] = result
        if op.name == "arith.constant":
            _retype_constant(op)

    def _replace_dot(self, op: tile.DotOp) -> None:
        attributes = op.operation.attributes
        flags = {
            name: attributes[name]
            for name in ("precision", "a_unsigned", "b_unsigned")
            if name in attributes
        }
        result, ip, loc = op.result, ir.InsertionPoint(op.operation), op.operation.location
        product = product_of(op, self._inference.lanes, self._inference.warps)
        if product.b is None:
            made = _warpgroup_mma(op, product.a is None, ip)
        else:
            build = tgpu.FmaDotOp.build
            if INSTRUCTION in attributes:
                build = tgpu.MmaOp.build
                flags["instruction"] = attributes[INSTRUCTION]
            made = build(op.a, op.b, op.acc, results=[result.type], loc=loc, ip=ip, **flags).result
        result.replace_all_uses_with(made)
        for key, value in self._made.items():
            if value == result:
                self._made[key] = made
        self._replaced.append(op)

    def _clean(self) -> None:
        for op in self._replaced:
            op.operation.erase()
        for node in reversed(self._graph.nodes):
            again = node.transparent or isinstance(node.op, tile.LoadOp)
            if again and not any(map(is_used, node.results)):
                node.op.operation.erase()
        for convert in reversed(self._converts):
            sink(convert.operation)


def _warpgroup_mma(op: tile.DotOp, a_shared: bool, ip: ir.InsertionPoint) -> ir.Value:
    """Build a product of warpgroups, and the wait for it.

    What is read in shared memory is taken from before its transposition, if it is transposed: the
    instructions do that.
    """
    attributes = op.operation.attributes
    a, a_transposed = _untransposed(op.a) if a_shared else (op.a, False)
    b, b_transposed = _untransposed(op.b)
    loc = op.operation.location
    started = tgpu.WarpgroupMmaOp.build(
        a, b, op.acc,
        results=[op.result.type],
        instruction=ir.StringAttr(attributes[INSTRUCTION]).value,
        a_shared=a_shared, a_transposed=a_transposed, b_transposed=b_transposed,
        a_unsigned=op.a_unsigned, b_unsigned=op.b_unsigned,
        loc=loc, ip=ip,
    )  # fmt: skip
    return tgpu.WarpgroupWaitOp.build(
        started.output, results=[op.result.type], pending=0, loc=loc, ip=ip
    ).output


def _untransposed(value: ir.Value) -> tuple[ir.Value, bool]:
    """Return a matrix, and whether it is to be taken transposed."""
    owner = value.owner
    if isinstance(owner, tile.TransOp) and list(owner.order) == [1, 0]:
        return owner.operation.operands[0], True
    return value, False


def _retype_constant(op: ir.Operation) -> None:
    """Give a constant's attribute the encoding that its result has."""
    type_ = op.results[0].type
    old: ir.Attribute = op.attributes["value"]
    if isinstance(old, ir.DenseElementsAttr) and old.is_splat:
        op.attributes["value"] = ir.DenseElementsAttr.get_splat(type_, old.get_splat_value())
    else:
        text = str(old).rpartition(" : ")[0]
        op.attributes["value"] = ir.Attribute.parse(f"{text} : {type_}", op.context)
