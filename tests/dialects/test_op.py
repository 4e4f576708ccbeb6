"""What IRDL is derived from an op class, how its fields read, and how it is built."""

import pytest
from mlir import ir

from tiledsl.dialects import contracts, tgpu, tile
from tiledsl.dialects.context import context, parse
from tiledsl.dialects.op import Op, Symbol, from_attribute, to_attribute

V = "tensor<8xf32>"
P = "tensor<8x!tile.ptr<f32>>"


def test_irdl_rejects_a_missing_attribute_and_a_wrong_result_type() -> None:
    for text in (
        'func.func @k() { %0 = "tile.program_id"() : () -> i32 return }',
        'func.func @k() { %0 = "tile.program_id"() {axis = 0} : () -> i64 return }',
    ):
        with pytest.raises(Exception, match="Unable to parse"):
            parse(text)


def test_optional_operands_read_as_none() -> None:
    module = parse(
        f'func.func @k(%p: {P}) {{ %0 = "tile.load"(%p) '
        f"{{operandSegmentSizes = array<i32: 1, 0, 0>}} : ({P}) -> {V} return }}"
    )
    (load,) = (op for op in contracts.operations(module.operation) if isinstance(op, tile.LoadOp))
    assert load.mask is None
    assert load.other is None
    assert load.cache == ""


@pytest.mark.parametrize("value", [True, 7, "text", [1, 2], Symbol("f")])
def test_attributes_round_trip(value: object) -> None:
    with context(), ir.Location.unknown():
        back = from_attribute(to_attribute(value))
    assert back == value
    assert type(back) is type(value)


def test_building_with_the_wrong_number_of_operands_is_an_error() -> None:
    with context(), ir.Location.unknown(), pytest.raises(TypeError, match="takes"):
        tile.SplatOp.build(results=[])


def test_every_op_class_has_documented_fields() -> None:
    for op in (*tile.OPS, *tgpu.OPS):
        assert op.__doc__
        assert op.__doc__ != Op.__doc__
        for field in (*op.operand_fields, *op.result_fields, *op.attr_fields):
            assert field.doc, f"{op.OPERATION_NAME}.{field.name}"
