"""Compute each thing once, where it is needed least often, and nothing that is not needed.

Upstream's passes do this for upstream's ops, but see no traits on ours, so a kernel of `tile` ops
would pass them unchanged. In one walk this pass folds ops (`fold`), merges equal ones, and moves
pure ones out of loops that they do not depend on; a second walk removes what nothing needs, loops'
carried values included. Upstream's canonicalization, which knows `arith` and `scf`, runs between.

Plain loads are merged too, as long as nothing may have written memory between them; never across
the start of a loop's trip, so that a loop that waits for memory to change still sees it change.

Before: any valid `tile` or `tgpu` module.
After: the same level and the same results, bit for bit.

    %a = "tile.splat"(%x) : (i32) -> tensor<8xi32>
    %b = "tile.splat"(%y) : (i32) -> tensor<8xi32>
    %c = arith.addi %a, %b : tensor<8xi32>
becomes
    %s = arith.addi %x, %y : i32
    %c = "tile.splat"(%s) : (i32) -> tensor<8xi32>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from mlir import ir

from tiledsl.transforms.effects import (
    TERMINATORS,
    is_control,
    is_plain_load,
    is_pure,
    is_removable,
    is_speculatable,
)
from tiledsl.transforms.fold import fold
from tiledsl.transforms.rewrite import attributes_of, terminator
from tiledsl.transforms.run import upstream

Key = tuple[object, ...]

_canonicalize = upstream("canonicalize", "canonicalize")


def simplify(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    tidy(module)
    _walk(module)


def tidy(module: ir.Module) -> None:
    """Do what `simplify` does, once: enough behind a pass that leaves few new chances."""
    _walk(module)
    _canonicalize(module)


def _walk(module: ir.Module) -> None:
    for op in list(module.body.operations):
        if op.operation.name == "func.func":
            for block in op.operation.regions[0].blocks:
                _Walk().block(block)
            remove_dead(op.operation)


@dataclass
class _Scope:
    """What has been computed in a block or those around it, by how it was computed.

    Attributes:
        level: How many blocks are around this one.
        outer: The scope around.
        loop: The loop whose body the block is, if it is one.
        values: Results by key.
    """

    level: int
    outer: _Scope | None
    loop: ir.Operation | None
    values: dict[Key, Sequence[ir.Value]] = field(default_factory=dict[Key, Sequence[ir.Value]])

    def find(self, key: Key) -> Sequence[ir.Value] | None:
        """Return the results of an equal op that dominates."""
        scope: _Scope | None = self
        while scope is not None:
            if key in scope.values:
                return scope.values[key]
            scope = scope.outer
        return None


class _Walk:
    """Folds, merges and hoists in program order."""

    def __init__(self) -> None:
        self._scope: _Scope | None = None
        self._levels: dict[ir.Block, int] = {}
        self._settled: set[ir.Operation] = set()
        self._states = count()
        self._memory = next(self._states)
        """A number that stands for the state of memory: equal numbers, equal memory."""

    def block(self, block: ir.Block, loop: ir.Operation | None = None) -> None:
        """Simplify a block, which is the body of `loop` if that is given."""
        outer = self._scope
        level = outer.level + 1 if outer else 0
        self._scope = _Scope(level, outer, loop)
        self._levels[block] = level
        for op in list(block.operations):
            self._operation(op, self._scope)
        self._scope = outer

    def _operation(self, op: ir.OpView, scope: _Scope) -> None:
        operation = op.operation
        if is_control(op):
            self._control(operation)
        elif not (is_pure(op) or is_plain_load(op)):
            self._memory = next(self._states)
        else:
            folded = fold(op)
            if folded is not None:
                _replace(operation, folded)
                for maker in dict.fromkeys(value.owner for value in folded):
                    self._fresh(maker, scope)
                return
            self._merge_or_hoist(op, scope)
            return
        self._settled.add(operation)

    def _fresh(self, maker: ir.OpView | ir.Block, scope: _Scope) -> None:
        """Simplify an op that a rule built, after its operands."""
        if isinstance(maker, ir.Block) or maker.operation in self._settled:
            return
        for operand in list(maker.operation.operands):
            self._fresh(operand.owner, scope)
        self._operation(maker, scope)

    def _control(self, op: ir.Operation) -> None:
        before = self._memory
        ends: list[int] = []
        for region in op.regions:
            for block in region.blocks:
                branch = op.name == "scf.if"
                self._memory = before if branch else next(self._states)
                self.block(block, None if branch else op)
                ends.append(self._memory)
        same = op.name == "scf.if" and all(end == before for end in ends)
        self._memory = before if same else next(self._states)

    def _merge_or_hoist(self, op: ir.OpView, scope: _Scope) -> None:
        operation = op.operation
        pure = is_pure(op)
        key = _key(operation) if pure else (*_key(operation), self._memory)
        found = scope.find(key)
        if found is not None:
            _replace(operation, found)
            return
        while scope.loop is not None and scope.outer and pure and self._is_invariant(op, scope):
            operation.move_before(scope.loop)
            scope = scope.outer
        scope.values[key] = list(operation.results)
        self._settled.add(operation)

    def _is_invariant(self, op: ir.OpView, scope: _Scope) -> bool:
        levels = [self._levels[_block_of(value)] for value in op.operation.operands]
        return all(level < scope.level for level in levels) and is_speculatable(op)


def _key(op: ir.Operation) -> Key:
    attributes = tuple(attributes_of(op).items())
    types = tuple(result.type for result in op.results)
    return (op.name, attributes, types, tuple(op.operands))


def _block_of(value: ir.Value) -> ir.Block:
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def _replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def remove_dead(function: ir.Operation) -> None:
    """Remove every op of `function` whose results nothing needs, also around loops.

    A value that a loop carries for itself alone is yielded unchanged from then on; upstream's
    canonicalization then takes it out of the loop.
    """
    live = _Live()
    for block in function.regions[0].blocks:
        live.mark_effects(block)
    live.spread()
    for block in function.regions[0].blocks:
        live.sweep(block)


class _Live:
    """Which ops are needed, and which values carried by `scf.for`."""

    def __init__(self) -> None:
        self._ops: set[ir.Operation] = set()
        self._work: list[ir.Value] = []
        self._carried: set[tuple[ir.Operation, int]] = set()

    def mark_effects(self, block: ir.Block) -> bool:
        """Mark the ops that do something besides computing results; say if there are any."""
        found = False
        for op in block.operations:
            operation = op.operation
            inner = [self.mark_effects(b) for region in operation.regions for b in region.blocks]
            # A while loop may never end, which is an effect.
            own = not (is_removable(op) or is_control(op) or operation.name in TERMINATORS)
            if own or any(inner) or operation.name in ("scf.while", "func.return"):
                found = True
                self._mark(operation)
        return found

    def _mark(self, op: ir.Operation) -> None:
        """Mark an op and what it needs whatever happens to its results."""
        if op in self._ops:
            return
        self._ops.add(op)
        self._work += op.operands
        if op.name in ("scf.if", "scf.while"):
            for region in op.regions:
                for block in region.blocks:
                    self._work += terminator(block).operands
        parent = op.parent
        if parent is not None and parent.operation.name not in ("func.func", "builtin.module"):
            self._mark(parent.operation)

    def spread(self) -> None:
        """Mark everything that what is marked needs."""
        while self._work:
            value = self._work.pop()
            owner = value.owner
            if isinstance(owner, ir.Block):
                loop = owner.owner.operation
                place = ir.BlockArgument(value).arg_number - 1
            else:
                loop = owner.operation
                self._mark(loop)
                place = ir.OpResult(value).result_number
            if loop.name == "scf.for":
                self._mark(loop)
                if place >= 0 and (loop, place) not in self._carried:
                    self._carried.add((loop, place))
                    self._work.append(terminator(loop.regions[0].blocks[0]).operands[place])

    def sweep(self, block: ir.Block) -> None:
        """Erase what is not marked."""
        for op in reversed(list(block.operations)):
            operation = op.operation
            if operation.name in TERMINATORS:
                continue
            if operation not in self._ops:
                operation.erase()
                continue
            if operation.name == "scf.for":
                self._still(operation)
            for region in operation.regions:
                for inner in region.blocks:
                    self.sweep(inner)

    def _still(self, loop: ir.Operation) -> None:
        """Yield carried values that nothing needs as they came."""
        body = loop.regions[0].blocks[0]
        end = terminator(body)
        for place in range(len(end.operands)):
            if (loop, place) not in self._carried:
                end.operands[place] = body.arguments[place + 1]
