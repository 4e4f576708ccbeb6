"""Kernels at the `tile` level, built op by op: what the front end emits for the usual examples."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from mlir import ir
from mlir.dialects import arith, func, scf

from tiledsl.dialects import tile
from tiledsl.dialects.context import context, parse
from tiledsl.dialects.op import Symbol
from tiledsl.dialects.types import element_of, like, pointee, pointer_to, shape_of, tile_type

COMBINE = {"add": ("arith.addf", "arith.addi"), "max": ("arith.maximumf", "arith.maxsi")}
"""The float and the integer op of each kind; "first" and "last" keep one argument, in order."""


class Kernel:
    """Builds one kernel; types are written as MLIR writes them, `*f16` being a pointer."""

    def __init__(self, *arguments: str) -> None:
        self.module = parse("module {}")
        with context():
            types = [self.type(text) for text in arguments]
            with ir.InsertionPoint(self.module.body), ir.Location.unknown():
                self.func = func.FuncOp("kernel", (types, []))
                block = self.func.add_entry_block()
        self.args = list(block.arguments)
        self.ip = [ir.InsertionPoint(block)]
        with context():
            aligned = ir.Attribute.parse("{tile.divisibility = 16 : i64}")
            self.func.attributes["tile.num_warps"] = ir.Attribute.parse("4 : i64")
            self.func.attributes["tile.num_stages"] = ir.Attribute.parse("3 : i64")
            self.func.arg_attrs = cast("Any", ir.ArrayAttr).get([aligned] * len(types))

    @staticmethod
    def type(text: str) -> ir.Type:
        if text[0] == "*":
            return pointer_to(ir.Type.parse(text[1:], context()))
        return ir.Type.parse(text, context())

    @contextmanager
    def here(self) -> Generator[None]:
        with context(), ir.Location.unknown(), self.ip[-1]:
            yield

    def finish(self) -> ir.Module:
        with self.here():
            func.ReturnOp([])
        return self.module

    # Tiles.

    def op(self, name: str, *operands: ir.Value, result: ir.Type | None = None) -> ir.Value:
        """Build an upstream op with one result, by default of its first operand's type."""
        with self.here():
            create = cast("Any", ir.Operation).create
            return create(name, [result or operands[0].type], list(operands)).result

    def pid(self, axis: int = 0) -> ir.Value:
        with self.here():
            return tile.ProgramIdOp.build(results=[self.type("i32")], axis=axis).id

    def constant(self, value: float, type_: ir.Type) -> ir.Value:
        with self.here():
            return arith.ConstantOp(type_, _attribute(value, type_)).result

    def range(self, size: int) -> ir.Value:
        with self.here():
            type_ = tile_type((size,), self.type("i32"))
            return tile.MakeRangeOp.build(results=[type_], start=0, end=size).tile

    def splat(self, scalar: ir.Value, *shape: int) -> ir.Value:
        with self.here():
            return tile.SplatOp.build(scalar, results=[tile_type(shape, scalar.type)]).tile

    def expand(self, value: ir.Value, axis: int) -> ir.Value:
        shape = list(shape_of(value.type))
        shape.insert(axis, 1)
        with self.here():
            type_ = tile_type(tuple(shape), element_of(value.type))
            return tile.ExpandDimsOp.build(value, results=[type_], axis=axis).tile

    def broadcast(self, value: ir.Value, *shape: int) -> ir.Value:
        if shape_of(value.type) == shape:
            return value
        with self.here():
            type_ = tile_type(shape, element_of(value.type))
            return tile.BroadcastOp.build(value, results=[type_]).tile

    def addptr(self, pointer: ir.Value, offset: ir.Value) -> ir.Value:
        with self.here():
            return tile.AddPtrOp.build(pointer, offset, results=[pointer.type]).result

    def trans(self, value: ir.Value, *order: int) -> ir.Value:
        shape = shape_of(value.type)
        with self.here():
            type_ = tile_type(tuple(shape[i] for i in order), element_of(value.type))
            return tile.TransOp.build(value, results=[type_], order=list(order)).tile

    def reshape(self, value: ir.Value, *shape: int) -> ir.Value:
        with self.here():
            type_ = tile_type(shape, element_of(value.type))
            return tile.ReshapeOp.build(value, results=[type_]).tile

    def join(self, first: ir.Value, second: ir.Value) -> ir.Value:
        with self.here():
            type_ = tile_type((*shape_of(first.type), 2), element_of(first.type))
            return tile.JoinOp.build(first, second, results=[type_]).tile

    def split(self, value: ir.Value) -> list[ir.Value]:
        with self.here():
            type_ = tile_type(shape_of(value.type)[:-1], element_of(value.type))
            made = tile.SplitOp.build(value, results=[type_, type_])
            return [made.first, made.second]

    def cat(self, first: ir.Value, second: ir.Value, axis: int) -> ir.Value:
        shape = list(shape_of(first.type))
        shape[axis] *= 2
        with self.here():
            type_ = tile_type(tuple(shape), element_of(first.type))
            return tile.CatOp.build(first, second, results=[type_], axis=axis).tile

    def load(self, pointer: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        with self.here():
            type_ = like(pointer.type, pointee(pointer.type))
            return tile.LoadOp.build(pointer, mask, None, results=[type_]).result

    def store(self, pointer: ir.Value, value: ir.Value, mask: ir.Value | None = None) -> None:
        with self.here():
            tile.StoreOp.build(pointer, value, mask)

    def dot(self, a: ir.Value, b: ir.Value, acc: ir.Value, **flags: Any) -> ir.Value:
        with self.here():
            return tile.DotOp.build(a, b, acc, results=[acc.type], **flags).result

    def cast(self, value: ir.Value, element: str) -> ir.Value:
        with self.here():
            return tile.CastOp.build(value, results=[like(value.type, self.type(element))]).result

    def cmp(self, left: ir.Value, right: ir.Value) -> ir.Value:
        with self.here():
            return arith.CmpIOp(arith.CmpIPredicate.slt, left, right).result

    def reduce(self, value: ir.Value, axis: int, kind: str = "add", combine: str = "") -> ir.Value:
        """Reduce by the function called `combine`, by default that of the kind."""
        element = element_of(value.type)
        shape = list(shape_of(value.type))
        del shape[axis]
        with self.here():
            return tile.ReduceOp.build(
                [value],
                results=[tile_type(tuple(shape), element)],
                axis=axis,
                combine=self.combine(combine or kind, element),
                kind=kind,
            ).results_[0]

    def scan(self, value: ir.Value, axis: int, combine: str = "add") -> ir.Value:
        function = self.combine(combine, element_of(value.type))
        with self.here():
            return tile.ScanOp.build(
                [value], results=[value.type], axis=axis, combine=function, kind=""
            ).results_[0]

    def combine(self, kind: str, element: ir.Type) -> Symbol:
        name = f"{kind}_{element}"
        symbols = [op.operation.attributes["sym_name"] for op in self.module.body.operations]
        found = [ir.StringAttr(symbol).value for symbol in symbols]
        if name not in found:
            result = {"first": "a", "last": "b"}.get(kind, "c")
            ops = COMBINE.get(kind, COMBINE["add"])
            op = ops[not isinstance(element, ir.FloatType)]
            made = parse(
                f"func.func private @{name}(%a: {element}, %b: {element}) -> {element} {{\n"
                f"  %c = {op} %a, %b : {element}\n  return %{result} : {element}\n}}"
            )
            self.module.body.append(made.body.operations[0].detach_from_parent())
        return Symbol(name)

    # Control flow.

    def loop(
        self,
        stop: ir.Value,
        carried: Sequence[ir.Value],
        body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
    ) -> list[ir.Value]:
        """Build `for i in range(stop)`, the body giving the carried values of the next trip."""
        zero, one = self.constant(0, stop.type), self.constant(1, stop.type)
        with self.here():
            made = scf.ForOp(zero, stop, one, list(carried))
        self.ip.append(ir.InsertionPoint(made.body))
        following = body(made.induction_variable, list(made.inner_iter_args))
        with self.here():
            scf.YieldOp(list(following))
        self.ip.pop()
        return list(made.results)

    def branch(
        self,
        condition: ir.Value,
        then: Callable[[], Sequence[ir.Value]],
        otherwise: Callable[[], Sequence[ir.Value]],
        types: Sequence[ir.Type],
    ) -> list[ir.Value]:
        """Build `if condition`, both sides giving the results."""
        with self.here():
            made = scf.IfOp(condition, list(types), has_else=True)
        for block, side in ((made.then_block, then), (made.else_block, otherwise)):
            self.ip.append(ir.InsertionPoint(block))
            values = side()
            with self.here():
                scf.YieldOp(list(values))
            self.ip.pop()
        return list(made.results)

    # Addresses.

    def pointers(self, base: ir.Value, *shape: int, stride: ir.Value | None = None) -> ir.Value:
        """Give row-major pointers of a tile; rows are `stride` apart, or the row's size."""
        if len(shape) == 1:
            return self.addptr(self.splat(base, *shape), self.range(shape[0]))
        rows = self.expand(self.range(shape[0]), 1)
        pitch = stride or self.constant(shape[1], self.type("i32"))
        rows = self.op("arith.muli", rows, self.splat(pitch, shape[0], 1))
        starts = self.addptr(self.splat(base, shape[0], 1), rows)
        columns = self.broadcast(self.expand(self.range(shape[1]), 0), *shape)
        return self.addptr(self.broadcast(starts, *shape), columns)


def _attribute(value: float, type_: ir.Type) -> ir.Attribute:
    element = type_.element_type if isinstance(type_, ir.RankedTensorType) else type_
    is_float = isinstance(element, ir.FloatType)
    one = ir.FloatAttr.get(element, value) if is_float else ir.IntegerAttr.get(element, int(value))
    return ir.DenseElementsAttr.get_splat(type_, one) if element != type_ else one


def vector_add(size: int = 1024, element: str = "f32") -> ir.Module:
    k = Kernel(f"*{element}", f"*{element}", f"*{element}")
    x, y = (k.load(k.pointers(p, size)) for p in k.args[:2])
    k.store(k.pointers(k.args[2], size), k.op("arith.addf", x, y))
    return k.finish()


def softmax(rows: int = 4, columns: int = 256) -> ir.Module:
    k = Kernel("*f32", "*f32", "i32")
    shape = rows, columns
    x = k.load(k.pointers(k.args[0], *shape, stride=k.args[2]))
    top = k.broadcast(k.expand(k.reduce(x, 1, "max"), 1), *shape)
    e = k.op("math.exp", k.op("arith.subf", x, top))
    total = k.broadcast(k.expand(k.reduce(e, 1, "add"), 1), *shape)
    k.store(k.pointers(k.args[1], *shape, stride=k.args[2]), k.op("arith.divf", e, total))
    return k.finish()


def matmul(
    m: int = 128,
    n: int = 128,
    depth: int = 32,
    element: str = "f16",
    acc: str = "f32",
    precision: str = "ieee",
) -> ir.Module:
    """Build a product whose loop carries its pointers."""
    k = Kernel(f"*{element}", f"*{element}", f"*{element}", "i32", "i32", "i32")
    pa, pb, pc, trips, lda, ldb = k.args
    a0, b0 = k.pointers(pa, m, depth, stride=lda), k.pointers(pb, depth, n, stride=ldb)
    zero = k.constant(0, tile_type((m, n), k.type(acc)))
    step_a = k.constant(depth, tile_type((m, depth), k.type("i32")))
    stride = k.op("arith.muli", ldb, k.constant(depth, ldb.type))
    step_b = k.splat(stride, depth, n)

    def body(_: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        sum_, a, b = carried
        sum_ = k.dot(k.load(a), k.load(b), sum_, precision=precision)
        return [sum_, k.addptr(a, step_a), k.addptr(b, step_b)]

    total = k.loop(trips, [zero, a0, b0], body)[0]
    result = total if acc == element else k.cast(total, element)
    k.store(k.pointers(pc, m, n, stride=ldb), result)
    return k.finish()


def attention(m: int = 64, n: int = 64, d: int = 64, element: str = "f16") -> ir.Module:
    """Build the loop of flash attention without masks: two chained products and two reductions."""
    k = Kernel(*[f"*{element}"] * 4, "i32", "i32")
    pq, pk, pv, po, trips, stride = k.args
    f32, i32 = k.type("f32"), k.type("i32")
    q = k.load(k.pointers(pq, m, d, stride=stride))
    steps = k.splat(k.op("arith.muli", stride, k.constant(n, i32)), n, d)
    none = k.constant(-1e30, tile_type((m,), f32))
    empty = k.constant(0, tile_type((m,), f32))
    acc = k.constant(0, tile_type((m, d), f32))

    def over(row: ir.Value, width: int) -> ir.Value:
        return k.broadcast(k.expand(row, 1), m, width)

    def body(_: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        top, total, acc, kp, vp = carried
        zero = k.constant(0, tile_type((m, n), f32))
        scores = k.dot(q, k.trans(k.load(kp), 1, 0), zero)
        new = k.op("arith.maximumf", top, k.reduce(scores, 1, "max"))
        p = k.op("math.exp2", k.op("arith.subf", scores, over(new, n)))
        alpha = k.op("math.exp2", k.op("arith.subf", top, new))
        total = k.op("arith.addf", k.op("arith.mulf", total, alpha), k.reduce(p, 1, "add"))
        acc = k.op("arith.mulf", acc, over(alpha, d))
        acc = k.dot(k.cast(p, element), k.load(vp), acc)
        return [new, total, acc, k.addptr(kp, steps), k.addptr(vp, steps)]

    start = [none, empty, acc, *(k.pointers(p, n, d, stride=stride) for p in (pk, pv))]
    _, total, acc, *_ = k.loop(trips, start, body)
    result = k.op("arith.divf", acc, over(total, d))
    k.store(k.pointers(po, m, d, stride=stride), k.cast(result, element))
    return k.finish()
