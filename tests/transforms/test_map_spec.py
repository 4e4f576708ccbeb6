from __future__ import annotations

from tiledsl.transforms.map_spec import MapSpec


def test_specs_survive_being_written() -> None:
    sizes = (("argument", 4), ("constant", 64))
    specs = [
        MapSpec("bf16", 0, sizes, (("argument", 7),), (64, 128), 128),
        MapSpec("f32", 2, sizes, (("constant", 96),), (8, 16), 32),
    ]
    assert MapSpec.parse(MapSpec.write(specs)) == specs
    assert MapSpec.parse(MapSpec.write([])) == []
