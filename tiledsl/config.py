"""One configuration of a kernel for tuning: `tile.Config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Hook = Callable[[dict[str, Any]], object]
"""Takes all of a call's arguments by name."""


class Config:
    """Values for some of a kernel's parameters and options, to be tried by `tile.autotune`.

    Args:
        kwargs: Values of parameters, as {"BLOCK": 128}.
        num_warps: Warps a program.
        num_stages: Stages of software pipelines.
        num_ctas: Thread blocks that run a program together, each with a part of its tiles.
        maxnreg: A limit of registers a thread (NVIDIA), or None.
        pre_hook: Called with all arguments by name before every launch of this configuration.
        **options: Further options of a launch, as fast_math=True.
    """

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Hook | None = None,
        **options: Any,
    ) -> None:
        self.kwargs = dict(kwargs)
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.options = dict(options)

    def all_kwargs(self) -> dict[str, Any]:
        """Return what a launch of this configuration is given by keyword."""
        limit = {} if self.maxnreg is None else {"maxnreg": self.maxnreg}
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        blocks = {} if self.num_ctas == 1 else {"num_ctas": self.num_ctas}
        return {**self.kwargs, **options, **blocks, **limit, **self.options}

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.all_kwargs().items())
