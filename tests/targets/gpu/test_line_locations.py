import pytest
from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects.context import context, parse
from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu.line_locations import debug_scopes, line_location, locate_unpacking
from tiledsl.transforms.run import upstream


def positions(location: str) -> str:
    """Return the text of a location as LLVM takes it."""
    with context():
        given = ir.Attribute.parse(f"loc({location})")
    return str(line_location(ir.Location.from_attr(given, context())))[4:-1]


def test_a_range_becomes_the_position_where_it_begins():
    assert positions('"f.py":3:5 to 4:9') == '"f.py":3:5'
    assert positions('"f.py":3:5') == '"f.py":3:5'


def test_calls_are_kept_each_as_a_position():
    inner = '"f.py":3:5 to :9 at callsite("g.py":7:1 to :4 at "h.py":2:2 to :3)'
    assert (
        positions(f"callsite({inner})")
        == 'callsite("f.py":3:5 at callsite("g.py":7:1 at "h.py":2:2))'
    )


def test_names_and_fusions_become_the_first_position_in_them():
    assert positions('fused["x"("f.py":3:5 to :9), "g.py":1:1]') == '"f.py":3:5'


def test_an_unknown_location_stays_one():
    assert positions("unknown") == "unknown"


MODULE = """
llvm.func @k(%p: !llvm.ptr) {
  %x = llvm.load %p : !llvm.ptr -> i32 loc("k.py":4:7)
  llvm.store %x, %p : i32, !llvm.ptr loc(callsite("f.py":9:3 at "k.py":5:7))
  llvm.return loc("k.py":3:1)
} loc("k.py":3:1)
"""


@pytest.mark.parametrize(
    ("tables", "kind"), [(True, "LineTablesOnly"), (False, "DebugDirectivesOnly")]
)
def test_llvm_ir_has_the_positions_once_its_functions_have_scopes(tables: bool, kind: str):
    module = parse(MODULE)
    assert "!dbg" not in llvm.translate_module_to_llvmir(module.operation)
    upstream(debug_scopes(tables=tables), "debug_scopes")(module)
    text = llvm.translate_module_to_llvmir(module.operation)
    for expected in (
        f"emissionKind: {kind}",
        'DIFile(filename: "f.py"',
        "DILocation(line: 4, column: 7, scope: ",
        "DILocation(line: 9, column: 3, scope: ",
    ):
        assert expected in text


def test_what_takes_loads_of_one_position_apart_is_of_that_position_and_nothing_else_is():
    module = parse(
        """
llvm.func @k(%p: !llvm.ptr, %v: vector<2xf32>, %i: i32) {
  %a = llvm.load %p : !llvm.ptr -> vector<2xf32> loc("k.py":4:7)
  %b = llvm.load %p : !llvm.ptr -> vector<2xf32> loc("k.py":4:7)
  %c = llvm.load %p : !llvm.ptr -> vector<2xf32> loc("k.py":5:7)
  %ab = llvm.shufflevector %a, %b [0, 1, 2, 3] : vector<2xf32> loc("k.py":6:1)
  %words = llvm.bitcast %ab : vector<4xf32> to vector<4xi32> loc("k.py":6:2)
  %first = llvm.extractelement %words[%i : i32] : vector<4xi32> loc("k.py":6:3)
  %bc = llvm.shufflevector %b, %c [0, 1, 2, 3] : vector<2xf32> loc("k.py":7:1)
  %other = llvm.extractelement %bc[%i : i32] : vector<4xf32> loc("k.py":7:2)
  %bv = llvm.shufflevector %b, %v [0, 1, 2, 3] : vector<2xf32> loc("k.py":8:1)
  %sum = llvm.fadd %a, %b : vector<2xf32> loc("k.py":9:1)
  %of_sum = llvm.extractelement %sum[%i : i32] : vector<2xf32> loc("k.py":9:2)
  llvm.return loc("k.py":3:1)
} loc("k.py":3:1)
"""
    )
    locate_unpacking(module)
    places = [str(op.operation.location)[4:-1] for op in operations(module.operation)][1:]
    loads = ["4:7", "4:7", "5:7"]
    others = ["7:1", "7:2", "8:1", "9:1", "9:2", "3:1"]
    assert places == [f'"k.py":{place}' for place in (*loads, "4:7", "4:7", "4:7", *others)]
