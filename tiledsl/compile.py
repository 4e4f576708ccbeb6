"""From a kernel and the types of its arguments to code, with or without a device.

`compile_kernel` is the one road: trace to `tile` IR, run the target's passes, assemble. A launch
takes it on a miss of the caches, `tile.compile` takes it ahead of time. What is kept of it is the
`tile` IR and the code; the levels between are made anew when somebody looks at them, so that
looking costs nothing to those who do not.

TILEDSL_DUMP=folder writes the IR after every pass of every compilation: see `dump`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl import cache, dump
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.specialize import ArgType
from tiledsl.targets.driver import Resources
from tiledsl.targets.target import Artifact, Options, Target, find, target
from tiledsl.transforms.map_spec import MapSpec

if TYPE_CHECKING:
    from mlir import ir

    from tiledsl.transforms.run import Observer

Stage = tuple[str, str]
"""A pass's name and the IR after it."""


@dataclass(frozen=True)
class Request:
    """Everything that a compilation depends on, but for the kernel's source.

    Attributes:
        signature: The run-time arguments, in the kernel's order.
        constexprs: The values of the others.
        chip: What to compile for, as "host", "sm_90a" or "gfx942".
        options: See `Options`.
    """

    signature: Mapping[str, ArgType]
    constexprs: Mapping[str, Any]
    chip: str
    options: Options


@dataclass(frozen=True)
class Usage:
    """What a program takes of its chip; None where no tool told.

    Attributes:
        shared_bytes: Shared memory a program, in bytes.
        registers: Vector registers a thread.
        spills: Bytes a thread spilled to memory.
        occupancy: Share of the chip's threads that can be resident at once, 0 to 1.
    """

    shared_bytes: int
    registers: int | None
    spills: int | None
    occupancy: float | None


class Levels(Mapping[str, str | bytes]):
    """The text or bytes of every level of a compiled kernel, by name, in the order of the road."""

    def __init__(self, compiled: CompiledKernel) -> None:
        self._compiled = compiled

    @cached_property
    def _names(self) -> list[str]:
        levels = [step.level.name for step in self._compiled.steps]
        between = [name for name in ("tgpu", "machine") if name in levels]
        return ["tile", *between, *self._compiled.artifact.texts]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> str | bytes:
        if name == "tile":
            return self._compiled.tile_ir
        if name in self._compiled.artifact.texts:
            return self._compiled.artifact.texts[name]
        if name not in self._names:
            raise KeyError(f"expected a level among {', '.join(self._names)}, found {name!r}")
        last = max(i for i, step in enumerate(self._compiled.steps) if step.level.name == name)
        return self._compiled.stages[last + 1][1]


class CompiledKernel:
    """A kernel compiled for one chip and one choice of argument types.

    Attributes:
        name: The kernel's name.
        request: What it was compiled for.
        artifact: The code, as the target's driver takes it.
        tile_ir: The `tile` module that it was made from.
        written: The arguments that it may write through, by their place in the signature.
        strides: The arguments that are strides of tensor descriptors, by name, and what TMA needs
            them to be multiples of.
        seconds: How long each step of the compilation took, in order; empty if it came from disk.
    """

    def __init__(
        self,
        name: str,
        request: Request,
        artifact: Artifact,
        tile_ir: str,
        written: Sequence[int],
        strides: Mapping[str, int],
        seconds: Sequence[tuple[str, float]] = (),
    ) -> None:
        self.name = name
        self.request = request
        self.artifact = artifact
        self.tile_ir = tile_ir
        self.written = list(written)
        self.strides = dict(strides)
        self.seconds = list(seconds)

    def __repr__(self) -> str:
        types = ", ".join(f"{name}: {t}" for name, t in self.request.signature.items())
        return f"<compiled kernel {self.name}({types}) for {self.request.chip}>"

    @property
    def asm(self) -> Levels:
        """Every level: "tile", "tgpu", "machine", "llvm", then the target's own, as "ptx"."""
        return Levels(self)

    @cached_property
    def steps(self) -> list[Any]:
        """The passes that made it, as `transforms.run.Step`s."""
        owner, chip = find(self.request.chip)
        return list(owner.pipeline(chip, self.request.options))

    @cached_property
    def stages(self) -> list[Stage]:
        """The IR as traced and after each pass: (pass name, text), the first named "trace"."""
        from tiledsl.dialects.context import lock, parse
        from tiledsl.transforms import run

        stages = [("trace", self.tile_ir)]

        def keep(name: str, module: ir.Module, seconds: float) -> None:
            stages.append((name, str(module)))

        with lock:
            run.run(parse(self.tile_ir), self.steps, [keep])
        return stages

    @property
    def resources(self) -> Usage:
        """What a program takes of the chip."""
        found = self.artifact.resources
        owner, chip = find(self.request.chip)
        occupancy: Callable[..., float | None] | None = getattr(owner, "occupancy", None)
        share = occupancy(chip, self.artifact) if occupancy is not None and found else None
        return Usage(
            # What a launch asks for, and what the code itself has.
            self.artifact.shared_bytes + (found.shared_bytes if found else 0),
            found.registers if found else None,
            found.spill_bytes if found else None,
            share,
        )


def compile_kernel(
    name: str,
    trace: Callable[[Request], ir.Module],
    request: Request,
    cache_key: str | None = None,
) -> CompiledKernel:
    """Compile for `request`, or take the result from disk.

    Args:
        name: The kernel's name, for dumps and messages.
        trace: Makes the `tile` module.
        request: What to compile for.
        cache_key: Name of the entry on disk, or None to leave the disk alone.

    Raises:
        KernelError: The kernel is wrong, or does not fit the chip.
        CompilerBug: The compiler is.
    """
    folder = dump.requested()
    if cache_key is not None and folder is None and (entry := cache.load(cache_key)) is not None:
        return _from_entry(name, request, entry)
    compiled = _compile(name, trace, request, folder)
    if cache_key is not None:
        cache.store(cache_key, _to_entry(compiled))
    return compiled


def _compile(
    name: str, trace: Callable[[Request], ir.Module], request: Request, folder: Path | None
) -> CompiledKernel:
    start = time.perf_counter()
    owner, chip = find(request.chip)
    from tiledsl.dialects.context import lock
    from tiledsl.transforms import run
    from tiledsl.transforms.kernels import kernels
    from tiledsl.transforms.memory_accesses import written_arguments
    from tiledsl.transforms.place_tensor_maps import strides_of

    timings = run.Timings([("load the compiler", time.perf_counter() - start)])
    observers: list[Observer] = [timings]
    dumper = dump.Dumper(folder, f"{name}-{chip}") if folder is not None else None
    with lock:
        start = time.perf_counter()
        module = trace(request)
        timings("trace", module, time.perf_counter() - start)
        tile_ir = str(module.operation.get_asm(enable_debug_info=True))
        written = [i for kernel in kernels(module) for i in written_arguments(kernel)]
        strides = strides_of(module)
        if dumper is not None:
            dumper("trace", module, 0.0)
            observers.append(dumper)
        run.run(module, owner.pipeline(chip, request.options), observers)
        start = time.perf_counter()
        artifact = _assemble(owner, module, chip, request.options)
        timings("assemble", module, time.perf_counter() - start)
    if dumper is not None:
        dumper.write_texts(artifact.texts)
    return CompiledKernel(name, request, artifact, tile_ir, written, strides, timings.seconds)


def _assemble(owner: Target, module: ir.Module, chip: str, options: Options) -> Artifact:
    try:
        return owner.assemble(module, chip, options)
    except (KernelError, CompilerBug):
        raise
    except Exception as error:
        raise CompilerBug(f"in assemble: {type(error).__name__}: {error}") from error


def _to_entry(compiled: CompiledKernel) -> dict[str, str | bytes]:
    artifact = compiled.artifact
    about = {
        "entry": artifact.entry,
        "kinds": artifact.kinds,
        "shared_bytes": artifact.shared_bytes,
        "threads": artifact.threads,
        "written": compiled.written,
        "strides": compiled.strides,
        "resources": asdict(artifact.resources) if artifact.resources else None,
        "tensor_maps": MapSpec.write(artifact.tensor_maps),
        "overlaps": artifact.overlaps,
        "cluster": artifact.cluster,
    }
    texts = {f"text/{name}": text for name, text in artifact.texts.items()}
    return {
        "about": json.dumps(about),
        "tile": compiled.tile_ir,
        "binary": artifact.binary,
        **texts,
    }


def _from_entry(name: str, request: Request, entry: Mapping[str, Any]) -> CompiledKernel:
    about = json.loads(entry["about"])
    resources = about["resources"]
    artifact = Artifact(
        texts={
            key.removeprefix("text/"): text
            for key, text in entry.items()
            if key.startswith("text/")
        },
        binary=entry["binary"],
        entry=about["entry"],
        kinds=tuple(about["kinds"]),
        shared_bytes=about["shared_bytes"],
        threads=about["threads"],
        resources=Resources(**resources) if resources else None,
        tensor_maps=tuple(MapSpec.parse(about["tensor_maps"])),
        overlaps=about["overlaps"],
        cluster=about["cluster"],
    )
    written, strides = about["written"], about["strides"]
    return CompiledKernel(name, request, artifact, entry["tile"], written, strides)


OPTION_NAMES = tuple(Options.__dataclass_fields__)


def make_options(given: Mapping[str, Any]) -> Options:
    """Return the options that keyword arguments ask for.

    Raises:
        KernelError: A value is out of range or of the wrong type; the message names the option.
    """
    options = replace(Options(), **given)
    warps: Any = options.num_warps
    if not isinstance(warps, int) or not 1 <= warps <= 32 or warps & (warps - 1):
        raise KernelError(f"num_warps: expected a power of two from 1 to 32, found {warps!r}")
    stages: Any = options.num_stages
    if not isinstance(stages, int) or not 1 <= stages <= 16:
        raise KernelError(f"num_stages: expected an integer from 1 to 16, found {stages!r}")
    blocks: Any = options.num_ctas
    if not isinstance(blocks, int) or not 1 <= blocks <= 8 or blocks & (blocks - 1):
        raise KernelError(f"num_ctas: expected a power of two from 1 to 8, found {blocks!r}")
    return options


def known_targets() -> list[str]:
    """Return the name of every chip that some target compiles for."""
    return [chip for name in ("host", "nvptx", "amdgpu") for chip in target(name).chips()]
