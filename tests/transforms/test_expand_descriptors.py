from __future__ import annotations

from mlir import ir

from tests.dialects.test_tile import GOOD
from tiledsl.dialects import contracts, tile
from tiledsl.dialects.context import context
from tiledsl.transforms.expand_descriptors import expand_descriptors


def names(module: ir.Module) -> list[str]:
    return [op.operation.name for op in contracts.operations(module.operation)]


def test_boxes_become_masked_accesses() -> None:
    module = ir.Module.parse(GOOD, context())
    before = names(module)
    expand_descriptors(module)
    contracts.check(module, contracts.TILE)
    after = names(module)
    assert "tile.descriptor_load" not in after
    assert "tile.descriptor_store" not in after
    assert after.count("tile.load") == before.count("tile.load") + 1
    assert after.count("tile.store") == before.count("tile.store") + 1


def test_what_is_kept_stays() -> None:
    module = ir.Module.parse(GOOD, context())
    expand_descriptors(module, keeps=lambda access: isinstance(access, tile.DescriptorLoadOp))
    after = names(module)
    assert after.count("tile.descriptor_load") == 1
    assert "tile.descriptor_store" not in after
