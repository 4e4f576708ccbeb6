"""Link an object into this process with LLVM's own linker, and find its function."""

from __future__ import annotations

import itertools
from functools import cache

import llvmlite.binding as llvm

from tiledsl.dialects.diagnostics import CompilerBug

_numbers = itertools.count()


@cache
def _compiler() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


def link(binary: bytes, entry: str) -> tuple[object, int]:
    """Return what keeps the code in memory, and the address of `entry`.

    One thread at a time.

    Raises:
        CompilerBug: The object is broken, or wants a symbol that the process lacks.
    """
    builder = llvm.JITLibraryBuilder().add_object_img(binary).add_current_process()
    try:
        code = builder.export_symbol(entry).link(_compiler(), f"tiledsl.{next(_numbers)}")
        return code, code[entry]
    except RuntimeError as error:
        raise CompilerBug(f"cannot link {entry}: {error}") from error
