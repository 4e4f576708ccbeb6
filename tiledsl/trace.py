"""From a kernel to a `tile` module: run its rewritten form once on tracer values.

`trace` is the seam between the front end and the compiler. The module it returns holds one public
`func.func` named after the kernel, whose arguments are the run-time parameters in order, with
`tile.name`, `tile.divisibility` (where one is known) and `tile.signed`; and private functions
that reductions and scans combine with. Constexprs are gone. Every op carries the author's place.

Whatever goes wrong while the author's code runs is shown at the innermost expression of the
author's, with the calls that led there: a `KernelError` of the language, a name that is not
defined, a variable that run-time control flow left without a value, any other Python exception.
What goes wrong in this package is a `CompilerBug`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, FunctionType, TracebackType
from typing import Any, cast

from mlir import ir

from tiledsl.control_flow import calls, loops
from tiledsl.control_flow.calls import prepared
from tiledsl.control_flow.desugar import RETURN
from tiledsl.control_flow.function import rewritten
from tiledsl.dialects import contracts
from tiledsl.dialects.context import context, lock
from tiledsl.dialects.diagnostics import CompilerBug, KernelError, Span
from tiledsl.dtypes import parse_dtype, pointer_type, unwrap
from tiledsl.language import casts
from tiledsl.language.builder import Builder, current, is_tracing, tracing
from tiledsl.language.positions import Place, is_library_file, places_of
from tiledsl.language.types import to_ir
from tiledsl.language.value import Value, constant, describe
from tiledsl.specialize import ArgType
from tiledsl.targets.target import Options
from tiledsl.tuples import nested


def trace(
    kernel: Callable[..., object],
    signature: Mapping[str, ArgType],
    constexprs: Mapping[str, object],
    options: Options,
) -> ir.Module:
    """Trace `kernel` into a module at the `tile` level.

    Args:
        kernel: The author's function.
        signature: Type of each run-time parameter, in the kernel's order.
        constexprs: Value of each other parameter.
        options: `num_warps` and `num_stages` become attributes; the float options decide the flags
            of arithmetic.

    Raises:
        KernelError: The kernel is wrong.
        CompilerBug: The front end is.
    """
    if not isinstance(kernel, FunctionType):
        raise KernelError(f"expected a Python function as a kernel, found {kernel!r}")
    with lock, context(), ir.Location.unknown():
        module = ir.Module.create()
        function, block = _declare(module, kernel, signature, options)
        base = inspect.currentframe()
        builder = Builder(module, block, options, base)
        try:
            with tracing(builder):
                _run(kernel, _arguments(function, signature), constexprs)
                _finish(builder, _definition(kernel))
        finally:
            builder.finish()
        contracts.check(module, contracts.TILE)
    return module


def call_helper(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a jitted function inside a kernel that is being traced.

    Raises:
        KernelError: No kernel is being traced.
    """
    if not is_tracing():
        raise KernelError(
            f"expected `{function.__name__}` to be launched with a grid, or called from a kernel",
            hint=f"{function.__name__}[grid](...)",
        )
    return prepared(function, tuple(args), kwargs)


# --- the kernel's function -----------------------------------------------------------------------


def _declare(
    module: ir.Module, kernel: FunctionType, signature: Mapping[str, ArgType], options: Options
) -> tuple[ir.Operation, ir.Block]:
    """Make the kernel's `func.func` and its block."""
    types = [_type(argument) for argument in signature.values()]
    location = _definition(kernel).location(context())
    op: ir.Operation = cast("Any", ir.Operation).create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(re.sub(r"\W", "_", kernel.__name__)),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
            "arg_attrs": _array(_argument_attributes(name, a) for name, a in signature.items()),
            "tile.num_warps": _i64(options.num_warps),
            "tile.num_stages": _i64(options.num_stages),
        },
        regions=1,
        loc=location,
        ip=ir.InsertionPoint(module.body),
    )
    block: ir.Block = cast("Any", ir.Block).create_at_start(
        op.regions[0], types, [location] * len(types)
    )
    return op, block


def _finish(builder: Builder, span: Span) -> None:
    cast("Any", ir.Operation).create(
        "func.return", loc=span.location(context()), ip=builder.region.ip
    )


def _definition(kernel: FunctionType) -> Span:
    code = kernel.__code__
    return Span(code.co_filename, code.co_firstlineno, 1, code.co_firstlineno, 1)


def _array(attributes: Iterable[ir.Attribute]) -> ir.Attribute:
    return cast("Any", ir.ArrayAttr).get(list(attributes))


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _type(argument: ArgType) -> ir.Type:
    dtype = parse_dtype(argument.dtype)
    return to_ir(pointer_type(dtype) if argument.pointer else dtype)


def _argument_attributes(name: str, argument: ArgType) -> ir.Attribute:
    attributes: dict[str, ir.Attribute] = {"tile.name": ir.StringAttr.get(name)}
    if argument.divisor > 1:
        attributes["tile.divisibility"] = _i64(argument.divisor)
    dtype = parse_dtype(argument.dtype)
    if dtype.is_int() and not argument.pointer:
        attributes["tile.signed"] = ir.BoolAttr.get(dtype.is_int_signed())
    return cast("Any", ir.DictAttr).get(attributes)


def _arguments(function: ir.Operation, signature: Mapping[str, ArgType]) -> dict[str, Value]:
    """Return the kernel's run-time parameters as values.

    One of a known value is a constant; one that is the same as another is that other: what may not
    change places with an access through one of them is found by where pointers come from.
    """
    values: dict[str, Value] = {}
    block = function.regions[0].blocks[0]
    for i, (name, argument) in enumerate(signature.items()):
        dtype = parse_dtype(argument.dtype)
        if argument.value is not None:
            # Typed like the argument, so that knowing the value changes no result.
            values[name] = constant(argument.value, dtype)
            continue
        kind = pointer_type(dtype) if argument.pointer else dtype
        if argument.same_as:
            values[name] = casts.to(values[argument.same_as], kind)
        else:
            values[name] = Value(block.arguments[i], kind, (), current().region)
    return values


# --- running it ----------------------------------------------------------------------------------


def _run(
    kernel: FunctionType, values: Mapping[str, Value], constexprs: Mapping[str, object]
) -> None:
    plain = {name: unwrap(value) for name, value in constexprs.items()}
    try:
        named = nested({**values, **plain})
        code = kernel.__code__
        first = [named.pop(name) for name in code.co_varnames[: code.co_posonlyargcount]]
        result = rewritten(kernel)(*first, **named)
        if result is not None:
            raise KernelError(
                f"expected kernel `{kernel.__name__}` to return nothing, found {describe(result)}",
                _definition(kernel),
                hint="store results through a pointer",
            )
    except KernelError as error:
        raise _placed(error, error.__traceback__) from error.__cause__
    except CompilerBug:
        raise
    except NameError as error:
        raise _placed(_unbound(error), error.__traceback__) from None
    except RecursionError as error:
        too_deep = _placed(KernelError(_TOO_DEEP, hint=_RECURSION), error.__traceback__)
        raise too_deep.at(_definition(kernel)) from None
    except Exception as error:
        if not _is_authors(error.__traceback__):
            raise CompilerBug(f"while tracing `{kernel.__name__}`: {error!r}") from error
        words = f"{type(error).__name__}: {error}"
        raise _placed(KernelError(words), error.__traceback__) from error


def _placed(error: KernelError, traceback: TracebackType | None) -> KernelError:
    """Return `error` at the author's expression that raised it, with the calls that led there."""
    places = places_of(traceback)
    if not places:
        return error
    notes = error.notes or _calls(places)
    return KernelError(error.message, error.span or places[0].span, error.hint, notes)


_TOO_DEEP = "expected calls and expressions nested less deeply than Python's recursion limit"
_RECURSION = "a function that calls itself must stop by a condition known at compile time"
_CALLS_SHOWN = 4


def _calls(places: Sequence[Place]) -> tuple[tuple[str, Span], ...]:
    """Return the calls that led to `places[0]`; of very many, the first and the last ones."""
    calls = [(f"called from `{place.function}`", place.span) for place in places[1:]]
    left_out = len(calls) - 2 * _CALLS_SHOWN
    if left_out > 0:
        word, span = calls[-_CALLS_SHOWN]
        resumed = (f"{word} ({left_out} calls left out)", span)
        calls[_CALLS_SHOWN:] = [resumed, *calls[-_CALLS_SHOWN + 1 :]]
    return tuple(calls)


_PACKAGE = os.path.join(os.path.dirname(__file__), "__init__.py")


def _is_authors(traceback: TracebackType | None) -> bool:
    """Return whether an exception comes from the author's code, or from a wrong call in it.

    Where an author calls something with wrong arguments, Python raises in the frame of the caller,
    which is the hook that stands for the call. A name that the package lacks is missed in the
    package itself, which imports its functions when they are first used.
    """
    inner = ""
    while traceback is not None:
        inner = traceback.tb_frame.f_code.co_filename
        traceback = traceback.tb_next
    return (
        not is_library_file(inner)
        or inner in (calls.__file__, loops.__file__, _PACKAGE)
        or (not inner.startswith(os.path.dirname(__file__)))
    )


_RETURN_HINT = "let every path return a value of one type, or none return a value"
_NAME = re.compile(r"'([^']*)'")


def _unbound(error: NameError) -> KernelError:
    """Return why a variable has no value: control flow of run time, or none at all."""
    match = _NAME.search(str(error))
    name = match[1] if match else "?"
    traceback, frames = error.__traceback__, list[FrameType]()
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        sites = [v for k, v in frame.f_locals.items() if k.startswith("__tile_")]
        for site in reversed(sites):
            reason = getattr(site, "reasons", {}).get(name)
            if reason is not None:
                hint = _RETURN_HINT if name == RETURN else reason.hint
                return KernelError(reason.words, hint=hint)
    if isinstance(error, UnboundLocalError) or "free variable" in str(error):
        return KernelError(f"expected `{name}` to have a value here, found none")
    return KernelError(f"expected a defined name, found `{name}`")
