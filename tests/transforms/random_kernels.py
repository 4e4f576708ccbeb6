"""Random kernels of the ops that layouts pass through, in i32, with loops and branches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import strategies as st
from mlir import ir

from tiledsl.dialects.types import shape_of, tile_type

from .tile_kernels import Kernel

ELEMENTS = 2048
"""Of each of the two arrays."""
_SIZES = st.sampled_from([1, 2, 4, 8, 16, 32])
_SHAPES = st.lists(_SIZES, min_size=1, max_size=3).map(tuple).filter(lambda s: math.prod(s) <= 256)


class RandomKernel:
    """Draws a kernel: it reads argument 0 and stores all it has made to argument 1."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.k = Kernel("*i32", "*i32", "i32")
        self.stored = 0

    def build(self) -> ir.Module:
        values = [self.load(self.draw(_SHAPES))]
        for _ in range(self.draw(st.integers(1, 7))):
            values += self.step(values)
        for value in values[-3:]:
            self.store(value)
        return self.k.finish()

    def pick(self, values: Sequence[ir.Value]) -> ir.Value:
        return self.draw(st.sampled_from(values))

    def pointers(self, base: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """Give pointers that walk memory along the dimensions in a random order."""
        k = self.k
        order = self.draw(st.permutations(range(len(shape))))
        total = k.splat(base, *shape)
        stride = 1
        for axis in order:
            index = k.range(shape[axis])
            step = k.constant(stride, tile_type((shape[axis],), k.type("i32")))
            index = k.op("arith.muli", index, step)
            for at in range(len(shape)):
                if at != axis:
                    index = k.expand(index, at)
            total = k.addptr(total, k.broadcast(index, *shape))
            stride *= shape[axis]
        return total

    def load(self, shape: tuple[int, ...]) -> ir.Value:
        start = self.draw(st.integers(0, ELEMENTS - math.prod(shape)))
        base = self.k.addptr(self.k.args[0], self.k.constant(start, self.k.type("i32")))
        return self.k.load(self.pointers(base, shape))

    def store(self, value: ir.Value) -> None:
        shape = shape_of(value.type)
        base = self.k.addptr(self.k.args[1], self.k.constant(self.stored, self.k.type("i32")))
        self.stored += math.prod(shape)
        if shape:
            self.k.store(self.pointers(base, shape), value)
        else:
            self.k.store(base, value)

    def step(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        tiles = [v for v in values if shape_of(v.type)]
        kind = self.draw(
            st.sampled_from(["same", "load", "shape", "reduce", "broadcast", "pair", "loop", "if"])
        )
        value = self.pick(tiles)
        shape = shape_of(value.type)
        match kind:
            case "same":
                return [self.same_shape(value)]
            case "load":
                return [self.load(shape)]
            case "reduce":
                axis = self.draw(st.integers(0, len(shape) - 1))
                kind, combine = self.draw(
                    st.sampled_from([("add", "add"), ("max", "max"), ("", "first"), ("", "last")])
                )
                return [self.k.reduce(value, axis, kind, combine)]
            case "broadcast":
                axis = self.draw(st.integers(0, len(shape)))
                size = self.draw(st.sampled_from([1, 2, 4]))
                grown = (*shape[:axis], size, *shape[axis:])
                if math.prod(grown) > 512 or len(grown) > 4:
                    return []
                return [self.k.broadcast(self.k.expand(value, axis), *grown)]
            case "shape":
                return self.reshaped(value)
            case "pair":
                return self.paired(value)
            case "loop":
                return self.loop(value)
            case _:
                return self.branch(value)

    def same_shape(self, value: ir.Value) -> ir.Value:
        """Give another tile of the shape of `value`."""
        k, shape = self.k, shape_of(value.type)
        kind = self.draw(st.sampled_from(["add load", "add range", "scan", "turn", "reduce"]))
        match kind:
            case "add load":
                return k.op("arith.addi", value, self.load(shape))
            case "add range":
                index = k.range(shape[-1])
                for _ in shape[1:]:
                    index = k.expand(index, 0)
                return k.op("arith.addi", k.broadcast(index, *shape), value)
            case "scan":
                axis = self.draw(st.integers(0, len(shape) - 1))
                return k.scan(value, axis, self.draw(st.sampled_from(["add", "last"])))
            case "turn":
                turned = k.trans(value, *reversed(range(len(shape))))
                return k.op("arith.addi", value, k.reshape(turned, *shape))
            case _:
                axis = self.draw(st.integers(0, len(shape) - 1))
                total = k.reduce(value, axis)
                if len(shape) == 1:
                    return k.op("arith.addi", value, k.splat(total, *shape))
                return k.op("arith.addi", k.broadcast(k.expand(total, axis), *shape), value)

    def reshaped(self, value: ir.Value) -> list[ir.Value]:
        shape = shape_of(value.type)
        if self.draw(st.booleans()):
            return [self.k.trans(value, *self.draw(st.permutations(range(len(shape)))))]
        flat = math.prod(shape)
        rows = self.draw(st.sampled_from([1 << i for i in range(flat.bit_length())]))
        return [self.k.reshape(value, rows, flat // rows)]

    def paired(self, value: ir.Value) -> list[ir.Value]:
        shape = shape_of(value.type)
        other = self.same_shape(value)
        kind = self.draw(st.sampled_from(["join", "cat", "split", "dot"]))
        if kind == "split" and shape[-1] == 2 and len(shape) > 1:
            return self.k.split(value)
        if kind == "dot" and len(shape) == 2 and shape[0] <= 32:
            right = self.k.trans(other, 1, 0)
            acc = self.k.constant(1, tile_type((shape[0], shape[0]), self.k.type("i32")))
            return [self.k.dot(value, right, acc)]
        if math.prod(shape) > 256 or len(shape) > 3:
            return []
        if kind == "join":
            return [self.k.join(value, other)]
        return [self.k.cat(value, other, self.draw(st.integers(0, len(shape) - 1)))]

    def loop(self, value: ir.Value) -> list[ir.Value]:
        k, shape = self.k, shape_of(value.type)
        begins = k.constant(1, value.type) if self.draw(st.booleans()) else value
        pointers = self.pointers(k.args[0], shape)
        one = k.constant(1, tile_type(shape, k.type("i32")))

        def body(_: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            total, where = carried
            total = k.op("arith.addi", total, k.load(where))
            if self.draw(st.booleans()):
                total = self.same_shape(total)
            return [total, k.addptr(where, one)]

        return k.loop(k.args[2], [begins, pointers], body)[:1]

    def branch(self, value: ir.Value) -> list[ir.Value]:
        k = self.k
        condition = k.cmp(k.args[2], k.constant(self.draw(st.sampled_from([0, 9])), k.type("i32")))
        sides = [lambda: [self.same_shape(value)], lambda: [k.constant(7, value.type)]]
        return k.branch(condition, sides[0], sides[1], [value.type])


@st.composite
def modules(draw: st.DrawFn) -> ir.Module:
    """Give modules at the `tile` level."""
    return RandomKernel(draw).build()
