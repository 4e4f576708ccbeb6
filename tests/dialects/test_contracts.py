"""Each level refuses what belongs to another."""

import pytest

from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import LLVM, MACHINE, TGPU, TILE, Level
from tiledsl.dialects.diagnostics import CompilerBug

LAYOUT = '"tgpu.layout"() {sym_name = "row", map = "register=[] lane=[[1],[2],[4]] warp=[] shape=[8]"} : () -> ()'
PLAIN = "func.func @k(%v: tensor<8xf32>) { %0 = arith.addf %v, %v : tensor<8xf32> return }"
LAID_OUT = LAYOUT + PLAIN.replace("8xf32", "8xf32, @row")


@pytest.mark.parametrize(("text", "level"), [(PLAIN, TILE), (LAID_OUT, TGPU)])
def test_a_module_at_its_level_passes(text: str, level: Level) -> None:
    contracts.check(parse(text), level)


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        (LAID_OUT, TILE, "expected no `tgpu` op at the tile level"),
        (LAID_OUT.removeprefix(LAYOUT), TILE, "expected a tile without layout"),
        (LAID_OUT.removeprefix(LAYOUT), TGPU, "expected a layout that the module defines"),
        (PLAIN, TGPU, "expected a tile with a layout"),
        (LAID_OUT.replace("8xf32", "16xf32"), TGPU, "expected a layout of shape (16,)"),
        (PLAIN, MACHINE, "expected no tile at the machine level"),
        ("func.func @k() { return }", LLVM, "expected no `func` op at the llvm level"),
        (
            'func.func @k() { %0 = "tgpu.alloc"() : () -> !tgpu.shared<tensor<8xf32>> return }',
            MACHINE,
            "expected no `tgpu` op",
        ),
    ],
)
def test_a_module_at_another_level_is_refused(text: str, level: Level, message: str) -> None:
    with pytest.raises(CompilerBug) as raised:
        contracts.check(parse(text), level)
    assert message in str(raised.value)
