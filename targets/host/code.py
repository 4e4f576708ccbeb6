"""Build machine-level ops at chosen places: constants, vectors, addresses.

Constants are made once, at the top of the function being built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from mlir import ir
from numpy.typing import NDArray

from tiledsl.targets.host.build import create
from tiledsl.targets.host.machine_types import (
    integer,
    lanes_of,
    pointer_type,
    vector_type,
    width_of,
    wrap,
)

_SMALL_FLOATS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
}
_DENSE: dict[int, type[np.generic]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


class Code:
    """Builds ops of one function.

    Args:
        entry: The function's entry block, whose top holds the constants.
    """

    def __init__(self, entry: ir.Block) -> None:
        self._entry = entry
        self._constants: dict[Any, ir.Value] = {}

    def op(
        self,
        name: str,
        operands: Sequence[ir.Value],
        result: ir.Type | None,
        at: ir.InsertionPoint,
        attributes: Mapping[str, ir.Attribute] | None = None,
    ) -> Any:
        """Build an op with at most one result and return that result."""
        made = create(name, operands, () if result is None else (result,), attributes, at=at)
        return None if result is None else made.results[0]

    def top(self) -> ir.InsertionPoint:
        """Return the place of constants, before all else."""
        return ir.InsertionPoint.at_block_begin(self._entry)

    def _constant(self, key: Any, type_: ir.Type, value: ir.Attribute) -> ir.Value:
        made = self.op("arith.constant", [], type_, self.top(), {"value": value})
        self._constants[key] = made
        return made

    def constant(self, type_: ir.Type, value: float) -> ir.Value:
        """Return a scalar constant; an integer wraps."""
        # The text tells -0.0 from 0.0, and a NaN equals itself.
        key = (type_, repr(value))
        found = self._constants.get(key)
        if found is not None:
            return found
        attribute: ir.Attribute
        if isinstance(type_, ir.FloatType):
            attribute = ir.FloatAttr.get(type_, value)
        elif type_ == integer(1):
            attribute = ir.BoolAttr.get(bool(value))
        else:
            attribute = ir.IntegerAttr.get(type_, wrap(int(value), width_of(type_)))
        return self._constant(key, type_, attribute)

    def float_constant(self, type_: ir.Type, value: ir.FloatAttr) -> ir.Value:
        """Return a float constant, held as `type_`: small ones as their bits."""
        if not isinstance(type_, ir.IntegerType):
            return self.constant(type_, value.value)
        small = np.array(value.value).astype(_SMALL_FLOATS[str(value.type)])
        return self.constant(type_, int.from_bytes(small.tobytes(), "little"))

    def table(self, element: ir.Type, values: NDArray[np.int64]) -> ir.Value:
        """Return a vector constant of integers (bools: 0 and 1), one a lane."""
        key = (element, values.tobytes())
        found = self._constants.get(key)
        if found is not None:
            return found
        type_ = vector_type(element, len(values))
        dense: Any = ir.DenseElementsAttr
        if element == integer(1):
            flags = [ir.BoolAttr.get(bool(value)) for value in values]
            return self._constant(key, type_, dense.get(flags, type_))
        array = values.astype(_DENSE[width_of(element)])
        return self._constant(key, type_, dense.get(array, type=type_))

    def splat(self, value: ir.Value, lanes: int, at: ir.InsertionPoint) -> ir.Value:
        """Return `value` in each of so many lanes."""
        if lanes == 1:
            return value
        return self.op("vector.broadcast", [value], vector_type(value.type, lanes), at)

    def shuffle(self, vector: ir.Value, picks: Sequence[int], at: ir.InsertionPoint) -> ir.Value:
        """Return the picked lanes of a vector, in order; one is a scalar."""
        element = ir.VectorType(vector.type).element_type
        if len(picks) == 1:
            return self.extract(vector, int(picks[0]), at)
        mask = ir.DenseI64ArrayAttr.get([int(pick) for pick in picks])
        type_ = vector_type(element, len(picks))
        return self.op("vector.shuffle", [vector, vector], type_, at, {"mask": mask})

    def interleave(
        self, a: ir.Value, b: ir.Value, picks: Sequence[int], at: ir.InsertionPoint
    ) -> ir.Value:
        """Return the picked lanes of two vectors of one type; those of `b` count on from `a`'s."""
        mask = {"mask": ir.DenseI64ArrayAttr.get(list(picks))}
        return self.op("vector.shuffle", [a, b], a.type, at, mask)

    def extract(self, vector: ir.Value, lane: int, at: ir.InsertionPoint) -> ir.Value:
        """Return one lane."""
        if not isinstance(vector.type, ir.VectorType):
            return vector
        position = ir.DenseI64ArrayAttr.get([lane])
        return self.op(
            "vector.extract",
            [vector],
            ir.VectorType(vector.type).element_type,
            at,
            {"static_position": position},
        )

    def binary(self, name: str, a: ir.Value, b: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Build an `arith` op whose result has its operands' type."""
        return self.op(f"arith.{name}", [a, b], a.type, at)

    def compare(self, predicate: int, a: ir.Value, b: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Compare integers with one of `arith.cmpi`'s predicates."""
        type_ = vector_type(integer(1), lanes_of(a.type))
        number = ir.IntegerAttr.get(integer(64), predicate)
        return self.op("arith.cmpi", [a, b], type_, at, {"predicate": number})

    def select(
        self, condition: ir.Value, a: ir.Value, b: ir.Value, at: ir.InsertionPoint
    ) -> ir.Value:
        """Choose; the condition is a scalar or has the operands' lanes."""
        return self.op("arith.select", [condition, a, b], a.type, at)

    def pointer(self, address: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Return an address, or each of a vector, as LLVM's pointer."""
        type_ = pointer_type()
        if isinstance(address.type, ir.VectorType):
            type_ = vector_type(type_, lanes_of(address.type))
        return self.op("llvm.inttoptr", [address], type_, at)

    def any_lane(self, flags: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Return whether a vector of bools has a true lane."""
        return self._reduce_flags("#vector.kind<or>", flags, at)

    def all_lanes(self, flags: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Return whether all lanes of a vector of bools are true."""
        return self._reduce_flags("#vector.kind<and>", flags, at)

    def _reduce_flags(self, kind: str, flags: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        if not isinstance(flags.type, ir.VectorType):
            return flags
        attribute = ir.Attribute.parse(kind, flags.type.context)
        return self.op("vector.reduction", [flags], integer(1), at, {"kind": attribute})


EQ, NE, SLT, SLE, SGT, SGE, ULT, ULE, UGT, UGE = range(10)
"""The predicates of `arith.cmpi`."""
