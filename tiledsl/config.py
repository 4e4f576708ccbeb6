"""One configuration of a kernel for tuning: `tile.Config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tiledsl.dialects.diagnostics import KernelError

Hook = Callable[[dict[str, Any]], object]
"""Takes all of a call's arguments by name."""


class Config:
    """Values for some of a kernel's parameters and options, to be tried by `tile.autotune`.

    Args:
        kwargs: Values of parameters, as {"BLOCK": 128}.
        num_warps: Warps a program.
        num_stages: Stages of software pipelines.
        num_ctas: Always 1: programs do not share their work yet.
        maxnreg: A limit of registers a thread (NVIDIA), or None.
        pre_hook: Called with all arguments by name before every launch of this configuration.
        **options: Further options of a launch, as fast_math=True.

    Raises:
        KernelError: `num_ctas` is not 1.
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
        if num_ctas != 1:
            raise KernelError(f"Config: expected num_ctas to be 1, found {num_ctas!r}")
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
        return {**self.kwargs, **options, **limit, **self.options}

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.all_kwargs().items())
