"""The one MLIR context of the process, with our dialects in it.

Types and attributes are uniqued per context and compared by address, and tables all over this
project are keyed on them; one context that lives as long as the process keeps them valid. Compiling
takes `lock`: a context is not safe to mutate from two threads.
"""

from __future__ import annotations

import threading
from functools import cache

from mlir import ir
from mlir.dialects import irdl

from tiledsl.dialects import ptx, tgpu, tile
from tiledsl.dialects.op import irdl_text

lock = threading.RLock()


@cache
def context() -> ir.Context:
    """Return the context, made at the first call."""
    made = ir.Context()
    with made, ir.Location.unknown():
        for name, dialect in (("tile", tile), ("tgpu", tgpu), ("ptx", ptx)):
            module = ir.Module.parse(irdl_text(name, dialect.TYPES, dialect.OPS))
            irdl.load_dialects(module)
    return made


def parse(text: str) -> ir.Module:
    """Parse the text of a module.

    Raises:
        mlir.ir.MLIRError: The text is no valid IR.
    """
    return ir.Module.parse(text, context())
