"""The trace that is under way: where the next op goes, and what is said about it.

One `Builder` lives as long as one kernel is traced; `current()` gives it to the functions of the
language. Ops go to the end of the innermost open `Region`. A region of a loop or a branch is filled
while it stands nowhere (`Builder.open`), because the op around it can be made only when it is known
which values the region gives; `Builder.close` leaves it, and `Builder.structured` makes the op. A
value may be used only while its region is open: `Value.handle` checks it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from mlir import ir

from tiledsl.dialects.context import context
from tiledsl.dialects.diagnostics import KernelError, Span
from tiledsl.language.positions import current_frames, place_of
from tiledsl.transforms.run import MOST_NESTED

if TYPE_CHECKING:
    from tiledsl.targets.target import Options


_create = cast("Any", ir.Operation).create  # the bindings' stub leaves types open


class Region:
    """A block that is being filled, or was.

    Attributes:
        block: The block.
        parent: The region around it; None for the kernel's body.
        words: What it is, for messages: "a run-time loop", "a run-time branch".
        merged_into: The region that its ops were moved to, if they were.
    """

    __slots__ = ("_open", "block", "ip", "merged_into", "parent", "words")

    def __init__(self, block: ir.Block, parent: Region | None, words: str) -> None:
        self.block = block
        self.ip = ir.InsertionPoint(block)
        self.parent = parent
        self.words = words
        self.merged_into: Region | None = None
        self._open = True

    @property
    def root(self) -> Region:
        """The region that its ops are in now."""
        return self if self.merged_into is None else self.merged_into.root

    @property
    def open(self) -> bool:
        """Whether values of it may be used."""
        return self.root._open

    def close(self) -> None:
        """Make its values unusable."""
        self._open = False


class Builder:
    """Builds one kernel.

    Attributes:
        module: The module of the kernel and its combine functions.
        options: What the compilation was asked for.
        region: The innermost open region.
        depth: How many regions are open in the kernel's body.
        count: How many ops were made.
        pending: The lazily evaluated expressions that are being evaluated, innermost last.
        held: The middle operand of the chained comparison that is being evaluated.
        float_flags: The `fastmath` attribute of `+`, `-`, `*` on floats, or None.
        function_flags: That of `/` and of transcendental functions, or None.
    """

    def __init__(
        self, module: ir.Module, body: ir.Block, options: Options, base: FrameType | None
    ) -> None:
        self.module = module
        self.options = options
        self.region = Region(body, None, "the kernel")
        self.depth = 0
        self.count = 0
        self.pending: list[object] = []
        self.held: object = None
        self.float_flags, self.function_flags = _flags(options)
        self._base = base
        self._locations: dict[tuple[tuple[int, int], ...], ir.Location] = {}
        # Blocks wait here until the op that holds them is made; those left at the end die with it.
        self._holder = _detached_region()

    # --- where an op goes ----------------------------------------------------------------------

    def open(self, words: str, types: Sequence[ir.Type] = ()) -> Region:
        """Begin a region that stands nowhere yet; ops go there until `close`.

        Args:
            words: What it is, for messages.
            types: Types of the block's arguments.

        Raises:
            KernelError: It would be nested too deeply.
        """
        if self.depth >= MOST_NESTED:
            raise KernelError(
                f"expected at most {MOST_NESTED} run-time branches and loops within each other",
                hint="a long chain of `and`, `or` or `elif` nests as deeply as it has parts",
            )
        unknown = ir.Location.unknown(context())
        make = cast("Any", ir.Block).create_at_start
        block: ir.Block = make(self._holder.regions[0], list(types), [unknown] * len(types))
        self.region = Region(block, self.region, words)
        self.depth += 1
        return self.region

    def close(self) -> Region:
        """End the innermost region; values made in it can no longer be used."""
        region = self.region
        if region.parent is None:
            raise RuntimeError("the kernel's body is closed by `finish` alone")
        region.close()
        self.region = region.parent
        self.depth -= 1
        return region

    def rewind(self, depth: int) -> None:
        """Drop the regions that were opened since the depth was `depth`."""
        while self.depth > depth:
            self.close()

    def splice(self, region: Region) -> None:
        """Move the ops of a closed region to the end of the innermost open one."""
        for op in list(region.block.operations):
            self.region.block.append(op.operation)
        region.merged_into = self.region

    def finish(self) -> None:
        """End the trace: drop what was left over."""
        self.region.close()
        self._holder.erase()

    # --- making an op --------------------------------------------------------------------------

    def create(
        self,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        attributes: Mapping[str, ir.Attribute] | None = None,
        region: Region | None = None,
    ) -> ir.Operation:
        """Make an upstream op at the end of `region`, or of the innermost one."""
        return _create(
            name,
            results=list(results),
            operands=list(operands),
            attributes=dict(attributes or {}),
            loc=self.location(),
            ip=(region or self.region).ip,
        )

    def structured(
        self,
        name: str,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        regions: Sequence[Region],
        attributes: Mapping[str, ir.Attribute] | None = None,
    ) -> ir.Operation:
        """Make an `scf` op that holds closed regions."""
        op = _create(
            name,
            results=list(results),
            operands=list(operands),
            attributes=dict(attributes or {}),
            regions=len(regions),
            loc=self.location(),
            ip=self.region.ip,
        )
        for i, region in enumerate(regions):
            region.block.append_to(op.regions[i])
        return op

    # --- where the author is -------------------------------------------------------------------

    def location(self) -> ir.Location:
        """Return the location of the author's expression, within the calls that led to it."""
        self.count += 1
        frames = current_frames(self._base)
        key = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        found = self._locations.get(key)
        if found is None:
            found = self._locations[key] = _location(frames)
        return found

    def span(self) -> Span | None:
        """Return the span of the author's expression."""
        frames = current_frames(self._base)
        return place_of(frames[0]).span if frames else None


def _location(frames: Sequence[FrameType]) -> ir.Location:
    places = [place_of(frame).span.location(context()) for frame in frames]
    if not places:
        return ir.Location.unknown(context())
    if len(places) == 1:
        return places[0]
    return ir.Location.callsite(places[0], places[1:], context())


def _detached_region() -> ir.Operation:
    unknown = ir.Location.unknown(context())
    return _create("scf.execute_region", regions=1, loc=unknown, ip=False)


def _flags(options: Options) -> tuple[ir.Attribute | None, ir.Attribute | None]:
    contract = ["contract"] if options.fp_contract else []
    fast = ["afn", "arcp"] if options.fast_math else []

    def attribute(flags: list[str]) -> ir.Attribute | None:
        if not flags:
            return None
        return ir.Attribute.parse(f"#arith.fastmath<{','.join(flags)}>", context())

    return attribute(contract + fast), attribute(fast)


class _Tracing(threading.local):
    builder: Builder | None = None


_tracing = _Tracing()


def is_tracing() -> bool:
    """Return whether a kernel is being traced in this thread."""
    return _tracing.builder is not None


def current() -> Builder:
    """Return the builder of the kernel that is being traced.

    Raises:
        KernelError: None is.
    """
    if _tracing.builder is None:
        raise KernelError(
            "expected to be inside a kernel: this function works on tiles",
            hint="launch a kernel as kernel[grid](...)",
        )
    return _tracing.builder


@contextmanager
def tracing(builder: Builder) -> Generator[None]:
    """Make `builder` the current one."""
    before = _tracing.builder
    _tracing.builder = builder
    try:
        yield
    finally:
        _tracing.builder = before
