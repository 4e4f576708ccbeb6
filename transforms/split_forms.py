"""Which part of each tile a block must have, where several blocks run one program.

A tile is had in one or more *forms*: whole, in every block, or split along one dimension, each
block having one of as many equal parts. Nothing is exchanged between blocks, so a form that is
wanted decides what is wanted of what the tile is made from: a row of a sum needs the row of the
terms, a row of a product the row of the left operand and all of the right one. `operand_forms` is
that rule, op by op; `Forms` follows it back from what the program writes to what it reads.

What both rows and columns are made from, as a range, is simply had twice. Not so what is dear or
happens once: a product, a volatile load and an atomic operation have one form each. Wanting another
is the kernel's fault, and so is wanting part of what only the whole tells, as a running sum along
the split dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import CompilerBug, KernelError, Span
from tiledsl.dialects.types import is_tile, shape_of
from tiledsl.transforms.rewrite import is_used, terminator

Form = int | None
"""The dimension that a tile is split along; None if every block has it whole."""
Atomic = tile.AtomicRmwOp | tile.AtomicCasOp
Effect = tile.StoreOp | tile.DescriptorStoreOp | tile.AssertOp | Atomic
"""Ops that do something for each element: for those that a block has."""
_LEAST_SIDE = 16
"""Rows or columns of a product that a block must keep: matrix instructions have no fewer."""
_WARPGROUP_ROWS = 64
"""Rows that warpgroup instructions have at least."""
_HINT = "num_ctas=1 runs the program in one block"


class Conflict(KernelError):
    """What is made once is wanted in several forms."""


def fault(op: ir.OpView, message: str, kind: type[KernelError] = KernelError) -> KernelError:
    """Return the error that points at an op."""
    return kind(f"num_ctas: {message}", Span.of(op.operation.location), _HINT)


def operand_forms(op: ir.OpView, form: Form) -> list[Form]:
    """Return what is wanted of each operand where an op, not a loop or branch, is in a form.

    Raises:
        KernelError: A part of the result depends on more than parts.
    """
    operands = list(op.operation.operands)
    if form is None:
        return [None] * len(operands)
    match op:
        case tile.DescriptorLoadOp():
            return [None] * len(operands)
        case tile.DescriptorStoreOp():
            return [*[None] * (len(operands) - 1), form]
        case tile.ExpandDimsOp():
            return [form - int(form > op.axis)]
        case tile.BroadcastOp():
            return [None if shape_of(op.source.type)[form] == 1 else form]
        case tile.TransOp():
            order: list[int] = op.order
            return [order[form]]
        case tile.ReshapeOp():
            return [_before_reshape(op, form)]
        case tile.ReduceOp():
            return [form + int(form >= op.axis)] * len(operands)
        case tile.ScanOp() if op.axis == form:
            raise fault(op, f"expected no scan along dimension {form}, which blocks split")
        case tile.JoinOp() if form == len(shape_of(op.tile.type)) - 1:
            raise fault(op, "expected no split along the dimension that is joined")
        case tile.CatOp() if op.axis == form:
            raise fault(op, "expected no split along the dimension that is concatenated")
        case tile.DotOp():
            return _of_dot(len(shape_of(op.acc.type)), form)
        case _:
            return [form if is_tile(value.type) else None for value in operands]


def _of_dot(rank: int, form: int) -> list[Form]:
    """Rows come from the left operand's rows, columns from the right one's."""
    if form < rank - 2:
        return [form, form, form]
    return [form, None, form] if form == rank - 2 else [None, form, form]


def _before_reshape(op: tile.ReshapeOp, form: int) -> int:
    """Find the dimension whose first half holds the elements of the result's first half."""
    old, new = shape_of(op.source.type), shape_of(op.tile.type)
    for dim, extent in enumerate(old):
        if prod(old[dim:]) == prod(new[form:]) and extent > 1:
            return dim
    raise fault(op, f"expected a reshape that keeps the elements of dimension {form} together")


def is_whole(op: ir.OpView) -> bool:
    """Whether an op gives scalars, or text, of tiles: every block has to know all of them."""
    results = op.operation.results
    if isinstance(op, tile.PrintOp):
        return True
    return bool(results) and not any(is_tile(one.type) for one in results)


class Forms:
    """The forms that are wanted of each tile, and those that effects have.

    Attributes:
        parts: How many blocks split a tile.
        effects: The form of each op that does something; whole means that one block does it.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.effects: dict[ir.Operation, Form] = {}
        self._wanted: dict[ir.Value, dict[Form, ir.OpView]] = {}

    def copy(self) -> Forms:
        """Return another with the same in it."""
        made = Forms(self.parts)
        made.effects = dict(self.effects)
        made._wanted = {value: dict(forms) for value, forms in self._wanted.items()}
        return made

    def of(self, value: ir.Value) -> list[Form]:
        """Return the forms that are wanted of a value; of a scalar, that it is there."""
        if not is_tile(value.type):
            return [None]
        return sorted(self._wanted.get(value, ()), key=_order)

    def of_op(self, op: ir.OpView) -> list[Form]:
        """Return the forms that an op without regions is wanted in."""
        if op.operation in self.effects:
            return [self.effects[op.operation]]
        results = list(op.operation.results)
        if not results:
            return [None]
        return sorted({form for one in results for form in self.of(one)}, key=_order)

    def act(self, op: Effect, form: Form) -> None:
        """Let an effect have a form.

        Raises:
            KernelError: Blocks would have to know more of each other.
        """
        self.effects[op.operation] = form
        if isinstance(op, Atomic) and is_used(op.old):
            if form is None:
                raise fault(op, "expected no result of an atomic operation that every block needs")
            self._once(op, self.of(op.old) or [form])
        for operand, wanted in zip(op.operation.operands, operand_forms(op, form), strict=True):
            self.want(operand, wanted, op)

    def want(self, value: ir.Value, form: Form, cause: ir.OpView) -> None:
        """Want a form of a value, and so of what it is made from.

        Args:
            value: The value.
            form: The form; ignored for scalars.
            cause: Whose need it is, for messages.

        Raises:
            KernelError: That cannot be.
        """
        work = [(value, form, cause)]
        while work:
            one, form, cause = work.pop()
            if not is_tile(one.type) or form in self._wanted.get(one, ()):
                continue
            self._check_extent(one, form, cause)
            self._wanted.setdefault(one, {})[form] = cause
            owner = one.owner
            if not isinstance(owner, ir.Block) and not owner.operation.name.startswith("scf."):
                op = owner.operation.opview
                self._once(op, self.of_op(op), cause)
                self._check_dot(op, form, cause)
                for operand, needed in zip(
                    op.operation.operands, operand_forms(op, form), strict=True
                ):
                    work.append((operand, needed, cause if needed == form else op))
            else:
                work += [(source, form, cause) for source in flows_from(one)]

    def _check_extent(self, value: ir.Value, form: Form, cause: ir.OpView) -> None:
        if form is None:
            return
        shape = shape_of(value.type)
        if shape[form] < self.parts:
            message = f"expected at least {self.parts} elements along dimension {form} to split"
            raise fault(cause, f"{message}, found a tile of shape {shape}")

    def _check_dot(self, op: ir.OpView, form: Form, cause: ir.OpView) -> None:
        if not isinstance(op, tile.DotOp) or form is None:
            return
        shape = shape_of(op.acc.type)
        if form >= len(shape) - 2 and shape[form] // self.parts < _LEAST_SIDE:
            message = f"expected a product with {_LEAST_SIDE * self.parts} or more along dimension"
            raise fault(cause, f"{message} {form} to split, found shape {shape}")

    def _once(self, op: ir.OpView, forms: Sequence[Form], cause: ir.OpView | None = None) -> None:
        """Require that what is done once is wanted in one form."""
        volatile = isinstance(op, tile.LoadOp) and op.volatile
        if volatile and None in forms:
            raise fault(op, "expected no volatile load that every block makes")
        if isinstance(op, Atomic):
            forms = [*{*forms, self.effects.get(op.operation, forms[0])}]
        elif not (volatile or isinstance(op, tile.DotOp)):
            return
        if len(forms) > 1:
            what = "product" if isinstance(op, tile.DotOp) else "tile"
            found = " and ".join(sorted(map(_words, forms)))
            message = f"expected a {what} that is used split in one way, found it used {found}"
            wanted = [self._wanted.get(one, {}) for one in op.operation.results]
            whole = [causes[None] for causes in wanted if None in causes]
            raise fault(whole[0] if whole else cause or op, message, Conflict)

    def cost(self) -> int:
        """Say how good the choice is: less is better.

        Best are products split along rows, if enough are left; then along columns. What is loaded
        twice costs as well, and what one block does alone.
        """
        total = 0
        for value, forms in self._wanted.items():
            owner = value.owner
            op = None if isinstance(owner, ir.Block) else owner.operation.opview
            if isinstance(op, tile.DotOp):
                total += 10 * sum(self._cost_of_dot(op, form) for form in forms)
            elif isinstance(op, tile.LoadOp | tile.DescriptorLoadOp):
                total += len(forms) - 1
        return total + 1000 * sum(form is None for form in self.effects.values())

    def _cost_of_dot(self, op: tile.DotOp, form: Form) -> int:
        shape = shape_of(op.acc.type)
        if form is None or form == len(shape) - 1:
            return 1
        few = shape[form] // self.parts < _WARPGROUP_ROWS <= shape[form]
        return 2 if few and form == len(shape) - 2 else 0


def _order(form: Form) -> int:
    return -1 if form is None else form


def _words(form: Form) -> str:
    return "whole" if form is None else f"along dimension {form}"


def flows_from(value: ir.Value) -> list[ir.Value]:
    """Return the values of which one becomes a loop's or branch's result or argument."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        op, number = owner.owner.operation, ir.BlockArgument(value).arg_number
        first = owner == op.regions[0].blocks[0]
        find = {"scf.for": _into_for, "scf.while": _into_before if first else _into_after}
    else:
        op, number = owner.operation, ir.OpResult(value).result_number
        find = {"scf.for": _out_of_for, "scf.while": _into_after, "scf.if": _out_of_if}
    if op.name not in find:
        raise CompilerBug(f"expected no tile out of {op.name}")
    sources: Callable[[ir.Operation, int], list[ir.Value]] = find[op.name]
    return sources(op, number)


def _into_for(op: ir.Operation, number: int) -> list[ir.Value]:
    return _out_of_for(op, number - 1)


def _out_of_for(op: ir.Operation, number: int) -> list[ir.Value]:
    """What is carried has one form in and out of every trip, so the result wants all of it."""
    body = op.regions[0].blocks[0]
    around = [op.operands[3 + number], op.results[number]]
    return [*around, terminator(body).operands[number], body.arguments[1 + number]]


def _into_before(op: ir.Operation, number: int) -> list[ir.Value]:
    before, after = (region.blocks[0] for region in op.regions)
    return [op.operands[number], terminator(after).operands[number], before.arguments[number]]


def _into_after(op: ir.Operation, number: int) -> list[ir.Value]:
    before, after = (region.blocks[0] for region in op.regions)
    out = terminator(before).operands[number + 1]
    return [out, after.arguments[number], op.results[number]]


def _out_of_if(op: ir.Operation, number: int) -> list[ir.Value]:
    return [terminator(region.blocks[0]).operands[number] for region in op.regions]
