"""Let several blocks run one program, each with a part of its tiles.

With `num_ctas=2` a program is run by a cluster of two thread blocks: each takes half of the rows of
what the program writes, and of all that it is made from (`split_forms`). Every pass that follows
sees the kernel of one block, over smaller tiles.

- Where tiles say where they are, a block's own place is added: to a `make_range` along the split
  dimension, to a box's index. Constants only get smaller.
- What every block needs whole it loads whole. Loads of boxes are marked (`blocks`): all blocks of
  the cluster read the same ones, so that each may bring a part of them to all.
- Scalars are the same in all blocks: every block computes them, and takes the same branches. So
  nothing that blocks could see differently may become one: a volatile load, an atomic's result.
- What is written whole, a scalar say, the first block writes, the others being masked off; the
  first block alone prints.

How a tile is split is chosen for each op that writes, from the last to the first: the dimension
which costs least (`Forms.cost`), in doubt the first. Where none will do, the first block writes it,
unless that is because one product is wanted in two ways: then nothing good would come of it.

Blocks meet where program order of global memory asks for it (`insert_barriers`). Whether all boxes
that a store writes begin at multiples of the whole tile (`apart`) is noted while that is known.

Before: the `tile` level, simplified.
After: the same, of one block; the function carries `tile.num_ctas`. `tile.program_id` still is the
program's.

    %r = "tile.make_range"() {start = 0, end = 128} : () -> tensor<128xi32>
    ... "tile.store"(%p, %v) : (tensor<128x!tile.ptr<f32>>, tensor<128xf32>) -> ()
becomes
    %b = "tile.block_id"() {blocks = 2} : () -> i32
    %r = "tile.make_range"() {start = 0, end = 64} : () -> tensor<64xi32>
    %s = %r + splat(%b * 64)
    ... "tile.store"(%q, %w) : (tensor<64x!tile.ptr<f32>>, tensor<64xf32>) -> ()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, cast

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.dialects.types import element_of, is_tile, shape_of, tile_type
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.lanes import Lanes, select
from tiledsl.transforms.rewrite import attributes_of
from tiledsl.transforms.scf_ops import if_else
from tiledsl.transforms.split_forms import (
    Conflict,
    Effect,
    Form,
    Forms,
    fault,
    is_whole,
    operand_forms,
)

_OUTSIDE = -(1 << 30)
"""An index before any tensor, far enough for a box there to be outside of it."""


def split_programs(module: ir.Module, *, blocks: int) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        blocks: Blocks that run a program; a power of two.

    Raises:
        KernelError: They would have to talk to each other.
    """
    for kernel in kernels(module):
        forms = choose_forms(kernel, blocks)
        _Build(kernel, forms).build()


# Which part of what.


def choose_forms(kernel: ir.OpView, parts: int) -> Forms:
    """Choose how a kernel's tiles are split.

    Raises:
        KernelError: They cannot be.
    """
    forms = Forms(parts)
    every = list(operations(kernel.operation))
    for op in every:
        _refuse_what_differs(op)
        if is_whole(op) and not isinstance(op, Effect):
            for operand in op.operation.operands:
                forms.want(operand, None, op)
    for op in reversed(every):
        if isinstance(op, Effect):
            forms = _with_effect(op, forms)
    return forms


def _refuse_what_differs(op: ir.OpView) -> None:
    """Refuse ops whose scalar result need not be the same in all blocks."""
    if isinstance(op, tile.LoadOp) and op.volatile and not is_tile(op.result.type):
        raise fault(op, "expected no volatile load of a scalar, which blocks may see differently")
    if isinstance(op, tile.AtomicCasOp) and not is_tile(op.ptr.type):
        raise fault(op, "expected no compare-and-swap of a scalar, which one block would do")


def _with_effect(op: Effect, forms: Forms) -> Forms:
    """Return the forms with an effect's in the way that costs least."""
    held = op.tile if isinstance(op, tile.DescriptorStoreOp) else op.operation.operands[0]
    found: list[Forms] = []
    conflict: Conflict | None = None
    for form, extent in enumerate(shape_of(held.type)):
        if extent >= forms.parts:
            trial = forms.copy()
            try:
                trial.act(op, form)
            except Conflict as error:
                conflict = conflict or error
            except KernelError:
                pass  # this dimension will not do
            else:
                found.append(trial)
    if found:
        return min(found, key=Forms.cost)
    if conflict is not None:
        raise conflict
    alone = forms.copy()
    alone.act(op, None)
    return alone


# The kernel of one block.


class _Build:
    """Builds a kernel anew, op after op, in the forms that are wanted."""

    def __init__(self, kernel: ir.OpView, forms: Forms) -> None:
        self._kernel = kernel
        self._forms = forms
        self._facts = AxisFacts(kernel)
        self._parts = forms.parts
        self._made: dict[tuple[ir.Value, Form], ir.Value] = {}
        self._block: Lanes
        self._first: Lanes

    def build(self) -> None:
        """Put the new kernel in the place of the old one."""
        old = self._kernel.operation
        attributes = attributes_of(old)
        i64 = ir.IntegerType.get_signless(64, old.context)
        attributes[tile.NUM_CTAS] = ir.IntegerAttr.get(i64, self._parts)
        made = _create("func.func", [], [], attributes, 1, old.location, ir.InsertionPoint(old))
        source = body(self._kernel)
        block = _append(made, 0, source, [a.type for a in source.arguments])
        self._note(source.arguments, block.arguments)
        with ir.InsertionPoint(block):
            with old.location:
                i32 = ir.IntegerType.get_signless(32)
                own = tile.BlockIdOp.build(results=[i32], blocks=self._parts)
                self._block = Lanes(own.id)
                self._first = self._block.eq(0)
            self._ops(source)
        old.erase()

    def _note(self, old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
        """Note new values, which are in the order of the old ones' forms."""
        left = list(new)
        for value in old:
            for form in self._forms.of(value):
                self._made[value, form] = left.pop(0)

    def _all(self, values: Sequence[ir.Value], like: Sequence[ir.Value]) -> list[ir.Value]:
        """Return values in the forms that are wanted of what they flow into."""
        return [
            self._made[value, form]
            for value, target in zip(values, like, strict=True)
            for form in self._forms.of(target)
        ]

    def _types(self, values: Sequence[ir.Value]) -> list[ir.Type]:
        return [
            self._narrowed(value.type, form) for value in values for form in self._forms.of(value)
        ]

    def _narrowed(self, type_: ir.Type, form: Form) -> ir.Type:
        """Return the type of a block's part of a tile."""
        if form is None or not is_tile(type_):
            return type_
        shape = list(shape_of(type_))
        shape[form] //= self._parts
        return tile_type(tuple(shape), element_of(type_))

    def _ops(self, block: ir.Block) -> None:
        for op in block.operations:
            with op.operation.location:
                self._op(op)

    def _op(self, op: ir.OpView) -> None:
        match op.operation.name:
            case "scf.for":
                self._for(op.operation)
            case "scf.while":
                self._while(op.operation)
            case "scf.if":
                self._if(op.operation)
            case "scf.yield":
                self._yield(op.operation)
            case "scf.condition":
                self._condition(op.operation)
            case name if name.startswith("scf."):
                raise CompilerBug(f"expected no {name}")
            case _:
                for form in self._forms.of_op(op):
                    self._plain(op, form)

    # Loops and branches.

    def _for(self, op: ir.Operation) -> None:
        operands, results = list(op.operands), list(op.results)
        bounds = [self._made[value, None] for value in operands[:3]]
        inits = self._all(operands[3:], results)
        made = _clone_empty(op, self._types(results), [*bounds, *inits])
        self._region(op, made, 0)
        self._note(results, made.results)

    def _while(self, op: ir.Operation) -> None:
        results = list(op.results)
        inits = self._all(list(op.operands), list(op.regions[0].blocks[0].arguments))
        made = _clone_empty(op, self._types(results), inits)
        for number in (0, 1):
            self._region(op, made, number)
        self._note(results, made.results)

    def _if(self, op: ir.Operation) -> None:
        results = list(op.results)
        made = _clone_empty(op, self._types(results), [self._made[op.operands[0], None]])
        for number, region in enumerate(op.regions):
            if len(region.blocks):
                self._region(op, made, number)
        self._note(results, made.results)

    def _region(self, op: ir.Operation, made: ir.Operation, number: int) -> None:
        source = op.regions[number].blocks[0]
        block = _append(made, number, source, self._types(list(source.arguments)))
        self._note(source.arguments, block.arguments)
        with ir.InsertionPoint(block):
            self._ops(source)

    def _yield(self, op: ir.Operation) -> None:
        parent: Any = op.parent
        if parent.name == "scf.while":
            targets = list(parent.operation.regions[0].blocks[0].arguments)
        else:
            targets = list(parent.operation.results)
        _create("scf.yield", [], self._all(list(op.operands), targets), attributes_of(op))

    def _condition(self, op: ir.Operation) -> None:
        parent: Any = op.parent
        goes_on, *passed = op.operands
        operands = [self._made[goes_on, None], *self._all(passed, list(parent.operation.results))]
        _create("scf.condition", [], operands, attributes_of(op))

    # Other ops.

    def _plain(self, op: ir.OpView, form: Form) -> None:
        operands = [
            self._made[value, wanted if is_tile(value.type) else None]
            for value, wanted in zip(op.operation.operands, operand_forms(op, form), strict=True)
        ]
        match op:
            case tile.MakeRangeOp() if form is not None:
                self._made[op.tile, form] = self._range(op)
            case tile.HintOp() if form is not None:
                self._made[op.output, form] = self._hint(op, operands[0], form)
            case tile.DescriptorLoadOp():
                self._load_box(op, operands, form)
            case tile.DescriptorStoreOp():
                self._store_box(op, operands, form)
            case tile.StoreOp() | tile.AtomicRmwOp() | tile.AssertOp() if form is None:
                self._in_first(op, operands)
            case tile.PrintOp():
                if_else(self._first.value, lambda: self._clone(op, operands, None), list, [])
            case tile.AtomicCasOp() if form is None:
                raise fault(op, "expected a compare-and-swap of a tile that blocks can split")
            case _:
                self._clone(op, operands, form)

    def _clone(self, op: ir.OpView, operands: Sequence[ir.Value], form: Form) -> list[ir.Value]:
        """Build an op in a form; gives nothing, as a branch would."""
        results = list(op.operation.results)
        types = [self._narrowed(one.type, form) for one in results]
        attributes = attributes_of(op.operation)
        value = attributes.get("value")
        if form is not None and isinstance(value, ir.DenseElementsAttr):
            one: Any = value.get_splat_value()
            attributes["value"] = ir.DenseElementsAttr.get_splat(types[0], one)
        made = _create(op.operation.name, types, operands, attributes)
        for old, new in zip(results, made.results, strict=True):
            self._made[old, form if is_tile(old.type) else None] = new
        return []

    def _start(self, extent: int) -> Lanes:
        """Build where this block's part of so many elements begins."""
        return self._block * (extent // self._parts)

    def _range(self, op: tile.MakeRangeOp) -> ir.Value:
        size = op.end - op.start
        type_ = self._narrowed(op.tile.type, 0)
        end = op.start + size // self._parts
        own = tile.MakeRangeOp.build(start=op.start, end=end, results=[type_]).tile
        start = tile.SplatOp.build(self._start(size).value, results=[type_]).tile
        return (Lanes(own) + Lanes(start)).value

    def _hint(self, op: tile.HintOp, source: ir.Value, form: int) -> ir.Value:
        """Build a hint for a part: runs are no longer than it, and begin where it does."""
        part = shape_of(source.type)[form]
        found: dict[str, Any] = {}
        for name in ("divisibility", "contiguity", "constancy"):
            given: list[int] | None = getattr(op, name)
            found[name] = None if given is None else list(given)
        divisors, runs = found["divisibility"], found["contiguity"]
        if divisors is not None and runs is not None and runs[form] > part:
            divisors[form] = gcd(divisors[form], part)
        for name in ("contiguity", "constancy"):
            lengths = found[name]
            if lengths is not None:
                lengths[form] = min(lengths[form], part)
        return tile.HintOp.build(source, results=[source.type], **found).output

    def _load_box(self, op: tile.DescriptorLoadOp, operands: list[ir.Value], form: Form) -> None:
        type_ = op.output.type
        made = tile.DescriptorLoadOp.build(
            self._moved(operands, shape_of(type_), form),
            results=[self._narrowed(type_, form)],
            padding=op.padding,
            rounds=op.rounds or None,
            blocks=self._parts if form is None else None,
        )
        self._made[op.output, form] = made.output

    def _store_box(self, op: tile.DescriptorStoreOp, operands: list[ir.Value], form: Form) -> None:
        shape = shape_of(op.tile.type)
        extents = (*(1 for _ in op.box.indices[len(shape) :]), *shape)
        divided = all(
            self._facts.of(index).divisor % extent == 0
            for index, extent in zip(op.box.indices, extents, strict=True)
        )
        *parts, held = operands
        if form is None:
            # Where other blocks would write it is outside of any tensor.
            place = len(parts) - len(op.box.indices)
            parts[place] = select(self._first, Lanes(parts[place]), _OUTSIDE).value
        tile.DescriptorStoreOp.build(
            [*self._moved(parts, shape, form), held],
            adds=op.adds or None,
            apart=(divided and form is not None) or None,
        )

    def _moved(self, parts: list[ir.Value], shape: Sequence[int], form: Form) -> list[ir.Value]:
        """Build where a block's part of a box is; a whole box stays where it is."""
        if form is None:
            return parts
        place = len(parts) - len(shape) + form
        index = Lanes(parts[place])
        start = self._start(shape[form])
        if index.type != start.type:
            start = start.convert("arith.extui", str(index.type))
        return [*parts[:place], (index + start).value, *parts[place + 1 :]]

    def _in_first(
        self, op: tile.StoreOp | tile.AtomicRmwOp | tile.AssertOp, operands: list[ir.Value]
    ) -> None:
        """Build an effect that the first block alone has."""
        like = operands[0].type
        first = self._first
        if is_tile(like):
            type_ = tile_type(shape_of(like), first.type)
            first = Lanes(tile.SplatOp.build(first.value, results=[type_]).tile)
        mask = first.value
        if op.mask is not None:
            mask = (Lanes(operands.pop()) & first).value
        attributes = {
            name: value
            for name, value in attributes_of(op.operation).items()
            if name != "operandSegmentSizes"
        }
        made = type(op).build(*operands, mask, results=[one.type for one in op.operation.results])
        for name, value in attributes.items():
            made.operation.attributes[name] = value


# Ops by name: what the bindings' stubs leave open.


def _create(
    name: str,
    results: Sequence[ir.Type],
    operands: Sequence[ir.Value],
    attributes: Mapping[str, ir.Attribute],
    regions: int = 0,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> ir.Operation:
    create = cast("Any", ir.Operation).create
    return create(name, list(results), list(operands), dict(attributes), None, regions, loc, ip)


def _clone_empty(
    op: ir.Operation, results: Sequence[ir.Type], operands: Sequence[ir.Value]
) -> ir.Operation:
    """Build an op like another, but for its types and operands, its regions empty."""
    return _create(op.name, results, operands, attributes_of(op), len(op.regions))


def _append(op: ir.Operation, region: int, like: ir.Block, types: Sequence[ir.Type]) -> ir.Block:
    """Add a region's block."""
    places = [a.location for a in like.arguments]
    places = places if len(places) == len(types) else [op.location] * len(types)
    return cast("Any", op.regions[region].blocks).append(*types, arg_locs=places)
