"""Run a kernel on an emulated GPU and say what it cost and what it did wrong: `tile.emulate`.

The kernel is compiled for the chip as always; the emulator executes its final assembly text on this
machine (see docs/emulators.md). `argument` makes arguments of the notation that the command line
has for them.
"""

from __future__ import annotations

import ast
import math
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tiledsl.arrays import numpy_dtype
from tiledsl.descriptor import TensorDescriptor
from tiledsl.device import EMULATE, device
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.jit import JITFunction, describe
from tiledsl.specialize import NAMES

if TYPE_CHECKING:
    from tiledsl.targets.gpu.emulator.report import Report


def emulate(
    kernel: JITFunction,
    grid: object,
    args: Sequence[object] = (),
    target: str = "gfx942",
    *,
    mode: Literal["lazy", "eager"] | None = None,
    findings: Literal["error", "warn", "report"] = "error",
    uninitialized: Collection[str] = (),
    step_limit: int | None = None,
    **kwargs: Any,
) -> Report:
    """Run a kernel once on an emulated chip.

    Args:
        kernel: What `tile.jit` made.
        grid: As of a launch: one to three integers, or a function from the arguments to them.
        args: The kernel's positional arguments; arrays in host memory, which it may write.
        target: The chip, as "sm_90a" or "gfx942".
        mode: When asynchronous operations take effect: see `tile.device`.
        findings: What happens where the kernel does something wrong: an "error", as of a launch;
            "warn"; or "report": nothing but an entry in the report.
        uninitialized: Parameters whose arrays count as never written, so that reading what the
            kernel itself did not write before is a finding.
        step_limit: How many basic blocks a warp may execute: see `tile.device`.
        **kwargs: Further arguments of the kernel, constexprs and options, as of a launch.

    Returns:
        The report: `print` it, or take its fields.

    Raises:
        KernelError: As of a launch; and for findings, if they are an error, at the line that is at
            fault, naming the array and the element.
    """
    from tiledsl.targets.gpu.emulator import settings

    if findings not in ("error", "warn", "report"):
        raise KernelError(f'findings: expected "error", "warn" or "report", found {findings!r}')
    if not isinstance(kernel, JITFunction):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KernelError(f"expected a kernel, which `tile.jit` makes, found {describe(kernel)}")
    if isinstance(uninitialized, str):
        uninitialized = (uninitialized,)
    target = target.removeprefix(f"{EMULATE}:")
    unknown = set(uninitialized) - {parameter.name for parameter in kernel.parameters}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise KernelError(f"uninitialized: kernel `{kernel.name}` has no parameter `{names}`")
    reports: list[Report] = []
    with (
        device(f"{EMULATE}:{target}", mode=mode, step_limit=step_limit),
        settings.use(
            findings=findings, report=reports.append, uninitialized=frozenset(uninitialized)
        ),
    ):
        kernel[grid](*args, **kwargs)
    if not reports:
        raise KernelError(
            f"kernel `{kernel.name}`: nothing ran on the emulated {target}",
            hint="the grid has a zero, or the arrays live on a GPU",
        )
    return reports[0]


# --- arguments as text ---------------------------------------------------------------------------

_ARRAY = re.compile(
    r"(?:tensor<\s*(?P<element>\w+)\s*,\s*(?P<block>\d+(?:\s*[,x]\s*\d+)*)"
    r"\s*(?:,\s*(?P<padding>nan|zero)\s*)?>|(?P<dtype>\w+))"
    r"\s*\[(?P<shape>[\d,x ]*)\](?::(?P<fill>.+))?"
)

ARGUMENTS = """\
  x=fp32[1024]:randn                    an array: element type, shape, what it is filled with
  y=fp16[64,128]                        zeros
  i=i32[100]:randint(0,9)               random integers from 0 to 8
  out=fp32[1024]:empty                  never written: a kernel that reads it first is at fault
  a="tensor<fp16, 64x32>[256,128]:ones" a tensor descriptor: blocks of 64 x 32 of such an array;
                                        "tensor<fp16, 64x32, nan>..." has NaN around it
  n=1000   eps=1e-5                     a number

Element types are spelled as in signatures ("fp32", "bf16", "i32"; "f32" will do); fillings are
zeros, ones, arange, randn, rand, randint(LOW,HIGH), empty, or a number. What is random depends on
the argument's name only."""
"""How `argument` wants its text."""

_ALIASES = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "bool": "i1"}

_FILLS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "zeros": lambda rng, count: np.zeros(count),
    "empty": lambda rng, count: np.zeros(count),
    "ones": lambda rng, count: np.ones(count),
    "arange": lambda rng, count: np.arange(count),
    "randn": lambda rng, count: rng.standard_normal(count),
    "rand": lambda rng, count: rng.random(count),
}
"""What an array may be filled with; any other text is a number that all elements have."""


def argument(text: str) -> tuple[str, object, bool]:
    """Make an argument of its description, as `ARGUMENTS` says.

    Returns:
        The parameter's name, the value, and whether it counts as never written.

    Raises:
        KernelError: It is not of this form.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name or not value:
        raise KernelError(f"--arg: expected NAME=VALUE, found {text!r}")
    match = _ARRAY.fullmatch(value)
    if match is None:
        try:
            return name, ast.literal_eval(value), False
        except (ValueError, SyntaxError):
            raise KernelError(
                f"--arg: expected a number or TYPE[SHAPE]:FILL for `{name}`, found {value!r}",
                hint='as "x=fp32[1024]:randn" or "n=1000"',
            ) from None
    written = match["dtype"] or match["element"]
    dtype = _ALIASES.get(written, written)
    if dtype not in NAMES:
        raise KernelError(
            f"--arg: expected an element type among {', '.join(NAMES)}, found {written!r}"
        )
    shape = _sizes(match["shape"])
    fill = match["fill"] or "zeros"
    values = np.asarray(_filled(name, fill, math.prod(shape)))
    array = values.astype(numpy_dtype(dtype)).reshape(shape)
    if match["block"]:
        descriptor = TensorDescriptor(array, _sizes(match["block"]), match["padding"] or "zero")
        return name, descriptor, fill == "empty"
    return name, array, fill == "empty"


def grid(text: str) -> tuple[int, ...]:
    """Return the programs along each axis that "4", "4,2", "4x2x1" or "(4, 2)" stand for.

    Raises:
        KernelError: It is not of this form.
    """
    sizes = text.strip().removeprefix("(").removesuffix(")").strip(", ")
    if not re.fullmatch(r"\d+(?:\s*[,x]\s*\d+){0,2}", sizes):
        raise KernelError(
            f"--grid: expected one to three integers, found {text!r}", hint='as "4", "4,2" or "4x2"'
        )
    return _sizes(sizes)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in re.split(r"[,x ]+", text.strip(", ")) if size)


def _filled(name: str, fill: str, count: int) -> Any:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if fill in _FILLS:
        return _FILLS[fill](rng, count)
    bounds = re.fullmatch(r"randint\((-?\d+),\s*(-?\d+)\)", fill)
    if bounds is not None and int(bounds[1]) < int(bounds[2]):
        return rng.integers(int(bounds[1]), int(bounds[2]), count)
    try:
        return np.full(count, float(fill))
    except ValueError:
        raise KernelError(
            f"--arg: expected a filling among {', '.join(_FILLS)}, randint(LOW,HIGH) or a number, "
            f"found {fill!r}"
        ) from None
