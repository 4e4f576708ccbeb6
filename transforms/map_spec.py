"""How the launcher makes a description of a tensor, for the unit that copies boxes of it.

No MLIR here: a launch reads it, also of a kernel that was compiled long ago.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Number = tuple[str, int]
"""("argument", position) or ("constant", value)."""


@dataclass(frozen=True)
class MapSpec:
    """How the launcher describes a tensor; dimensions from the contiguous one outwards.

    Attributes:
        element: MLIR's name of the element type; "tf32" for f32 that copies round.
        base: Position of the pointer among the author's arguments.
        sizes: Elements along each dimension.
        strides: Elements from one to the next along each dimension but the first.
        box: Elements along each dimension of what one copy moves.
        swizzle: Bytes of the permutation's pattern, 0 for none.
        written: Whether boxes are copied to the tensor.
    """

    element: str
    base: int
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]
    box: tuple[int, ...]
    swizzle: int
    written: bool = False

    @staticmethod
    def write(specs: Sequence[MapSpec]) -> str:
        """Give specs as text."""
        return json.dumps([asdict(spec) for spec in specs])

    @staticmethod
    def parse(text: str) -> list[MapSpec]:
        """Read what `write` gave."""

        def pairs(some: Sequence[Sequence[Any]]) -> tuple[Number, ...]:
            return tuple((str(kind), int(value)) for kind, value in some)

        return [
            MapSpec(
                one["element"],
                one["base"],
                pairs(one["sizes"]),
                pairs(one["strides"]),
                tuple(one["box"]),
                one["swizzle"],
                one["written"],
            )
            for one in json.loads(text)
        ]
