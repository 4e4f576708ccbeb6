"""ptxas's options in the terms of the driver's own compiler, for machines without ptxas.

Where ptxas is not found the driver translates the PTX when it is loaded. It knows a few of ptxas's
options by numbers; the others cannot be passed, which is told rather than passed over.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.ptxas import OVERRIDE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-O", "--opt-level", "-opt-level", type=int, choices=range(5), dest="level")
    parser.add_argument("--maxrregcount", "-maxrregcount", type=int, dest="registers")
    parser.add_argument("-g", "--device-debug", "-device-debug", action="store_true", dest="debug")
    lines = ("--generate-line-info", "-lineinfo", "-generate-line-info")
    parser.add_argument(*lines, action="store_true", dest="lines")
    parser.add_argument("-v", "--verbose", "-verbose", action="store_true")
    return parser


def driver_options(options: str) -> dict[str, int]:
    """Return the driver's options (CUjit_option without CU_JIT_) for those of ptxas.

    Args:
        options: As for ptxas, quoted as for a shell.

    Raises:
        KernelError: The driver has no such option, or they are not well formed.
    """
    try:
        found: Any = _parser().parse_args(shlex.split(options))
    except ValueError as error:
        raise KernelError(
            "ptxas_options: expected options that the driver's own compiler has too, as ptxas was "
            f"not found (-O, --maxrregcount, -g, -lineinfo, -v), found {options!r}: {error}",
            hint=f"install nvidia-cuda-nvcc, or set {OVERRIDE} to a ptxas",
        ) from None
    known = {
        "OPTIMIZATION_LEVEL": found.level,
        "MAX_REGISTERS": found.registers,
        "GENERATE_DEBUG_INFO": 1 if found.debug else None,
        "GENERATE_LINE_INFO": 1 if found.lines else None,
    }
    return {option: value for option, value in known.items() if value is not None}
