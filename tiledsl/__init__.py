"""tiledsl: a tile-level kernel language for NVIDIA GPUs, AMD GPUs and the CPU.

    import tiledsl as tile

    @tile.jit
    def add(x, y, out, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        a, b = tile.load(x + i, mask=i < n), tile.load(y + i, mask=i < n)
        tile.store(out + i, a + b, mask=i < n)

    add[(tile.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)

The functions of the language need MLIR, which takes a third of a second to import, so they are
imported when they are first used (PEP 562); type checkers see them as they see the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.dtypes import (
    DType,
    bfloat16,
    bool_,
    constexpr,
    float8_e4m3fn,
    float8_e5m2,
    float8e4m3fn,
    float8e4nv,
    float8e5,
    float8e5m2,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    pointer_type,
    uint8,
    uint16,
    uint32,
    uint64,
)

# `autotune`, `compile`, `device`, `emulate`, `heuristics` and `jit` name a module and the function
# in it; the modules must be imported before, for importing one later would put it in the function's
# place.
from tiledsl.jit import JITFunction, compile, jit  # isort: skip
from tiledsl.device import device  # isort: skip
from tiledsl.emulate import emulate  # isort: skip
from tiledsl.autotune import autotune  # isort: skip
from tiledsl.heuristics import heuristics  # isort: skip
from tiledsl.config import Config
from tiledsl.descriptor import TensorDescriptor
from tiledsl.sizes import cdiv, next_power_of_2
from tiledsl.warps import warp_size

if TYPE_CHECKING:
    from tiledsl.language import math
    from tiledsl.language.atomics import (
        atomic_add,
        atomic_and,
        atomic_cas,
        atomic_max,
        atomic_min,
        atomic_or,
        atomic_xchg,
        atomic_xor,
    )
    from tiledsl.language.core import (
        arange,
        assume,
        full,
        full_like,
        max_constancy,
        max_contiguous,
        multiple_of,
        num_programs,
        program_id,
        static_assert,
        static_print,
        zeros,
        zeros_like,
    )
    from tiledsl.language.debug import debug_barrier, device_assert, device_print
    from tiledsl.language.descriptor import make_tensor_descriptor
    from tiledsl.language.dot import dot
    from tiledsl.language.math import (
        PropagateNan,
        abs,
        cast,
        ceil,
        clamp,
        cos,
        div_rn,
        erf,
        exp,
        exp2,
        expm1,
        fdiv,
        floor,
        fma,
        fmax,
        fmin,
        log,
        log1p,
        log2,
        log10,
        maximum,
        minimum,
        rint,
        rsqrt,
        sigmoid,
        sin,
        softmax,
        sqrt,
        sqrt_rn,
        tanh,
        trunc,
        umulhi,
        where,
    )
    from tiledsl.language.memory import load, store
    from tiledsl.language.random import (
        pair_uniform_to_normal,
        philox,
        rand,
        rand4x,
        randint,
        randint4x,
        randn,
        randn4x,
        uint_to_uniform_float,
    )
    from tiledsl.language.ranges import range, static_range
    from tiledsl.language.reduce import (
        all,
        any,
        argmax,
        argmin,
        max,
        min,
        reduce,
        reduce_or,
        sum,
        xor_sum,
    )
    from tiledsl.language.scan import associative_scan, cumprod, cumsum, histogram
    from tiledsl.language.shape import (
        broadcast,
        broadcast_to,
        cat,
        expand_dims,
        flip,
        interleave,
        join,
        permute,
        ravel,
        reshape,
        split,
        trans,
        view,
    )
    from tiledsl.language.sort import sort, topk
    from tiledsl.language.swizzle import swizzle2d
    from tiledsl.language.value import Value

_LAZY = {
    "atomic_add": "atomics",
    "atomic_and": "atomics",
    "atomic_cas": "atomics",
    "atomic_max": "atomics",
    "atomic_min": "atomics",
    "atomic_or": "atomics",
    "atomic_xchg": "atomics",
    "atomic_xor": "atomics",
    "arange": "core",
    "assume": "core",
    "full": "core",
    "full_like": "core",
    "max_constancy": "core",
    "max_contiguous": "core",
    "multiple_of": "core",
    "num_programs": "core",
    "program_id": "core",
    "static_assert": "core",
    "static_print": "core",
    "zeros": "core",
    "zeros_like": "core",
    "debug_barrier": "debug",
    "device_assert": "debug",
    "device_print": "debug",
    "dot": "dot",
    "PropagateNan": "math",
    "abs": "math",
    "cast": "math",
    "ceil": "math",
    "clamp": "math",
    "cos": "math",
    "div_rn": "math",
    "erf": "math",
    "exp": "math",
    "exp2": "math",
    "expm1": "math",
    "fdiv": "math",
    "floor": "math",
    "fma": "math",
    "fmax": "math",
    "fmin": "math",
    "log": "math",
    "log10": "math",
    "log1p": "math",
    "log2": "math",
    "maximum": "math",
    "minimum": "math",
    "rint": "math",
    "rsqrt": "math",
    "sigmoid": "math",
    "sin": "math",
    "softmax": "math",
    "sqrt": "math",
    "sqrt_rn": "math",
    "tanh": "math",
    "trunc": "math",
    "umulhi": "math",
    "where": "math",
    "make_tensor_descriptor": "descriptor",
    "load": "memory",
    "store": "memory",
    "pair_uniform_to_normal": "random",
    "philox": "random",
    "rand": "random",
    "rand4x": "random",
    "randint": "random",
    "randint4x": "random",
    "randn": "random",
    "randn4x": "random",
    "uint_to_uniform_float": "random",
    "range": "ranges",
    "static_range": "ranges",
    "all": "reduce",
    "any": "reduce",
    "argmax": "reduce",
    "argmin": "reduce",
    "max": "reduce",
    "min": "reduce",
    "reduce": "reduce",
    "reduce_or": "reduce",
    "sum": "reduce",
    "xor_sum": "reduce",
    "associative_scan": "scan",
    "cumprod": "scan",
    "cumsum": "scan",
    "histogram": "scan",
    "sort": "sort",
    "topk": "sort",
    "broadcast": "shape",
    "broadcast_to": "shape",
    "cat": "shape",
    "expand_dims": "shape",
    "flip": "shape",
    "interleave": "shape",
    "join": "shape",
    "permute": "shape",
    "ravel": "shape",
    "reshape": "shape",
    "split": "shape",
    "trans": "shape",
    "view": "shape",
    "swizzle2d": "swizzle",
    "Value": "value",
}
"""Where each function of the language stands, below `tiledsl.language`."""


def __getattr__(name: str) -> Any:
    if name == "math":
        found = import_module("tiledsl.language.math")
    elif name in _LAZY:
        found = getattr(import_module(f"tiledsl.language.{_LAZY[name]}"), name)
    else:
        instead = f": use {_INSTEAD[name]}" if name in _INSTEAD else _nearest(name)
        raise AttributeError(f"module `tiledsl` has no attribute `{name}`{instead}")
    globals()[name] = found
    return found


_INSTEAD = {
    "advance": "tile.make_tensor_descriptor, whose boxes are named by their offsets",
    "dtype": "tile.DType",
    "extra": "the functions of tile.math",
    "float8e4b15": "tile.float8e4m3fn",
    "gather": "tile.load(x + indices), which picks elements by their pointers",
    "isnan": "x != x",
    "libdevice": "the functions of tile.math",
    "make_block_ptr": "tile.make_tensor_descriptor",
    "pow": "x ** 2, or tile.exp2(y * tile.log2(x))",
    "round": "tile.rint",
    "tensor": "tile.Value",
}
"""What stands here for functions and types of Triton's that have other names, or none."""


def _nearest(name: str) -> str:
    """Return the words that ask whether another name was meant."""
    from difflib import get_close_matches

    close = get_close_matches(name, __all__, n=1, cutoff=0.8)
    return f": did you mean `{close[0]}`?" if close else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "CompilerBug",
    "Config",
    "DType",
    "JITFunction",
    "KernelError",
    "PropagateNan",
    "TensorDescriptor",
    "Value",
    "abs",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "associative_scan",
    "assume",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
    "autotune",
    "bfloat16",
    "bool_",
    "broadcast",
    "broadcast_to",
    "cast",
    "cat",
    "cdiv",
    "ceil",
    "clamp",
    "compile",
    "constexpr",
    "cos",
    "cumprod",
    "cumsum",
    "debug_barrier",
    "device",
    "device_assert",
    "device_print",
    "div_rn",
    "dot",
    "emulate",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "fdiv",
    "flip",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8e4m3fn",
    "float8e4nv",
    "float8e5",
    "float8e5m2",
    "float16",
    "float32",
    "float64",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "full",
    "full_like",
    "heuristics",
    "histogram",
    "int1",
    "int8",
    "int16",
    "int32",
    "int64",
    "interleave",
    "jit",
    "join",
    "load",
    "log",
    "log1p",
    "log2",
    "log10",
    "make_tensor_descriptor",
    "math",
    "max",
    "max_constancy",
    "max_contiguous",
    "maximum",
    "min",
    "minimum",
    "multiple_of",
    "next_power_of_2",
    "num_programs",
    "pair_uniform_to_normal",
    "permute",
    "philox",
    "pointer_type",
    "program_id",
    "rand",
    "rand4x",
    "randint",
    "randint4x",
    "randn",
    "randn4x",
    "range",
    "ravel",
    "reduce",
    "reduce_or",
    "reshape",
    "rint",
    "rsqrt",
    "sigmoid",
    "sin",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "sqrt_rn",
    "static_assert",
    "static_print",
    "static_range",
    "store",
    "sum",
    "swizzle2d",
    "tanh",
    "topk",
    "trans",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uint_to_uniform_float",
    "umulhi",
    "view",
    "warp_size",
    "where",
    "xor_sum",
    "zeros",
    "zeros_like",
]
