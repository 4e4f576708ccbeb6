"""Looking into a running kernel: `device_print`, `device_assert`, `debug_barrier`."""

from __future__ import annotations

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import unwrap
from tiledsl.language import casts
from tiledsl.language.builder import current
from tiledsl.language.memory import optional_mask
from tiledsl.language.operands import as_value, broadcast_to
from tiledsl.language.value import Operand, Value, build_all, describe


def device_print(prefix: str, *args: Operand, hex: bool = False) -> None:
    """Print values from the device: a line an element, with the program's and its own index.

    A line is `pid (x, y, z) idx (i, j) prefix value`. Elements of a value, and values, come in no
    particular order.

    Args:
        prefix: A string known at compile time, printed first.
        *args: Scalars, or tiles.
        hex: Whether integers and pointers print as hexadecimal.
    """
    text = unwrap(prefix)
    if not isinstance(text, str):
        raise KernelError(
            f"expected a string as the first argument of `device_print`, found {describe(text)}"
        )
    values = [_printable(as_value(a)) for a in args]
    for value in values or [None]:
        unsigned = value is not None and not value.dtype.is_int_signed()
        build_all(
            tile.PrintOp,
            value,
            types=[],
            prefix=text,
            signed=False if unsigned else None,
            hex=bool(unwrap(hex)) or None,
        )


def _printable(value: Value) -> Value:
    """Return 8- and 16-bit floats as float32, which prints them exactly."""
    from tiledsl.dtypes import float32

    small = value.dtype.is_floating() and value.dtype.primitive_bitwidth < 32
    return casts.to(value, float32) if small else value


def device_assert(cond: Operand, msg: str = "", mask: Operand | None = None) -> None:
    """Stop the kernel with a message unless every element of a condition is true.

    Like Triton's, it costs nothing and does nothing unless the kernel is compiled with
    `debug=True`.

    Args:
        cond: Bools, or numbers that are true where they are not 0.
        msg: A string known at compile time; the source position is added.
        mask: Which elements to check; all by default.
    """
    builder = current()
    text = unwrap(msg)
    if not isinstance(text, str):
        raise KernelError(f"expected `msg` to be a string, found {describe(text)}")
    truth = casts.truth(as_value(cond))
    given = optional_mask(mask)
    if not builder.options.debug:
        return
    span = builder.span()
    where = f"{span.file}:{span.line}: " if span else ""
    build_all(
        tile.AssertOp,
        truth,
        None if given is None else broadcast_to(given, truth.shape),
        types=[],
        message=f"{where}{text or 'assertion failed'}",
    )


def debug_barrier() -> None:
    """Make this program's accesses to memory before it happen before those after it.

    Accesses of one array are in order anyway. Two arguments that overlap, but begin at different
    addresses, need this between a store through one and a load through the other.
    """
    build_all(tile.BarrierOp, types=[])
