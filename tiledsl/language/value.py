"""The value core: tracer values, and what every function of the language does with its arguments.

A `Value` stands for a scalar or a tile that exists at run time: an MLIR value with the element type
that the author sees (`dtype`, signedness included) and its shape. Python numbers stay Python
numbers until they meet a `Value`, and then take its type (weak typing); what is computed from
Python numbers alone is plain Python.

For functions of the language, in the order they need it; from `operands`:

    as_value(x)                         a Value of any number or Value; numbers take their own type
    as_value(x, like=dtype)             a number takes the weak promotion with `dtype`
    promote_values(a, b, what="`+`")    two Values of one type (not one shape)
    broadcast_values(a, b, what="`+`")  Values of one shape, as NumPy broadcasts
    broadcast_to(a, shape)              one Value of a given shape
    static_int(x, what), static_shape(x)   arguments that must be known at compile time

and from this module:

    build(Op, a, b, dtype=..., shape=..., attr=...)    one op of the `tile` dialect with one result
    build_all(Op, ..., types=[(dtype, shape), ...])    one with any number of results
    constant(3, dtype, shape)           a constant, rounded to the type first
    upstream("arith.addi", a, b, dtype=..., attributes={...})   an op of arith or math

A mistake is `KernelError("expected X, found Y")`; without a span it is shown at the author's
expression being executed, with the calls that led there. Casts are in `casts`, operators in
`elementwise`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from mlir import ir

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.op import Op
from tiledsl.dtypes import DType, unwrap
from tiledsl.language.builder import Region, current
from tiledsl.language.types import Shape, constant_attribute, tile_of

Number = bool | int | float
Operand = Any
"""What an author may pass as a value: a Value, a Python or NumPy number, a constexpr of one."""


class TileType(NamedTuple):
    """The type of a value, as Triton's `x.type`: element type and shape."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}" if self.shape else str(self.dtype)

    @property
    def words(self) -> str:
        """As messages say it."""
        if not self.shape:
            return f"{self.dtype} scalar"
        return f"{self.dtype} tile of shape {self.shape}"

    @property
    def scalar(self) -> DType:
        """The element type."""
        return self.dtype

    @property
    def element_ty(self) -> DType:
        """What a scalar pointer leads to; the element type of a tile."""
        return self.dtype if self.shape else self.dtype.element_ty

    def is_ptr(self) -> bool:
        """Return whether this is a scalar pointer."""
        return not self.shape and self.dtype.is_ptr()

    def is_block(self) -> bool:
        """Return whether this is a tile rather than a scalar."""
        return bool(self.shape)


def _elementwise() -> ModuleType:
    from tiledsl.language import elementwise  # it needs this module

    return elementwise


class Value:
    """A scalar or a tile at run time.

    Attributes:
        dtype: The element type; a pointer's is `tile.pointer_type(...)`.
        shape: The sizes; () for a scalar.
        region: Where it was made.
        weak: Whether it is an int32 that was a Python number before a loop: as that would, it
            takes a wider integer type that it meets.
    """

    __slots__ = ("_handle", "dtype", "region", "shape", "weak")
    __hash__ = object.__hash__

    def __init__(
        self, handle: ir.Value, dtype: DType, shape: Shape, region: Region, weak: bool = False
    ) -> None:
        self._handle = handle
        self.weak = weak
        self.region = region
        self.dtype = dtype
        self.shape = shape

    @property
    def handle(self) -> ir.Value:
        """The MLIR value.

        Raises:
            KernelError: It was made in a loop or branch that has ended.
        """
        if not self.region.open:
            raise KernelError(
                f"expected a value that exists here, found {describe(self)} made in "
                f"{self.region.words} that has ended",
                hint="assign it to a variable that has a value of this type before",
            )
        return self._handle

    def held_at(self, region: Region) -> ir.Value:
        """Return the MLIR value for a use at the end of `region`, which may be closed already."""
        return self._handle if self.region.root is region.root else self.handle

    def stand_for(self, handle: ir.Value) -> None:
        """Take another MLIR value of the same type in place of one that goes away."""
        self._handle = handle

    @property
    def type(self) -> TileType:
        """Element type and shape."""
        return TileType(self.dtype, self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Value:
        """The tile with its dimensions in reverse."""
        from tiledsl.language import indexing  # it needs this module

        return indexing.permuted(self, tuple(range(self.ndim))[::-1])

    def to(
        self, dtype: object, bitcast: bool = False, fp_downcast_rounding: str | None = None
    ) -> Value:
        """Convert to another element type.

        Args:
            dtype: The type.
            bitcast: Whether to keep the bits instead of the number.
            fp_downcast_rounding: "rtne" or None: floats round to nearest even.
        """
        from tiledsl.language import casts  # it needs this module

        return casts.to(self, dtype, bitcast, fp_downcast_rounding)

    cast = to

    def __repr__(self) -> str:
        return f"<tile value {self.type}>"

    # --- what Python must not do with a run-time value -------------------------------------------

    def __bool__(self) -> bool:  # to type checkers: a kernel's `if` takes scalars
        if self.shape:
            raise KernelError(
                f"expected a scalar condition, found {describe(self)}",
                hint="combine tiles with & | ~, or reduce with tile.any or tile.all",
            )
        raise KernelError(
            "expected a value known at compile time: Python asks here whether a run-time "
            f"{self.dtype} is true",
            hint="write the condition as an `if`, `while`, `and`, `or`, `not` of the kernel itself",
        )

    def __index__(self) -> NoReturn:
        raise KernelError(f"expected an integer known at compile time, found run-time {self.type}")

    def __int__(self) -> NoReturn:
        raise KernelError(
            f"expected a number known at compile time, found run-time {self.type}",
            hint="a conversion at run time is x.to(tile.int32)",
        )

    def __float__(self) -> NoReturn:
        raise KernelError(
            f"expected a number known at compile time, found run-time {self.type}",
            hint="a conversion at run time is x.to(tile.float32)",
        )

    def __round__(self, digits: object = None) -> NoReturn:
        raise KernelError(
            f"expected a number known at compile time, found run-time {self.type}",
            hint="use tile.rint(x)",
        )

    def __iter__(self) -> NoReturn:
        hint = "tile.sum(x) and the like combine the elements" if self.shape else None
        raise KernelError(f"expected something to iterate over, found {describe(self)}", hint=hint)

    def __contains__(self, item: object) -> NoReturn:
        raise KernelError("expected a list or another Python container, found a run-time value")

    def __len__(self) -> int:
        if not self.shape:
            raise KernelError(f"expected a tile, found {describe(self)}")
        return self.shape[0]

    def __setitem__(self, key: object, item: object) -> NoReturn:
        raise KernelError(
            "expected no assignment to elements: tiles are values",
            hint="tile.where(condition, new, old) makes a changed tile",
        )

    def __delitem__(self, key: object) -> NoReturn:
        raise KernelError("expected no deletion of elements: tiles are values of one shape")

    def __getitem__(self, key: object) -> Value:
        from tiledsl.language import indexing  # it needs this module

        return indexing.indexed(self, key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from tiledsl.language import methods, misuse  # they need this module

        method = methods.find(self, name)
        if method is None:
            raise misuse.missing_attribute(name, describe(self), methods.names())
        return method

    # --- what NumPy asks ------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Operand, **options: Any) -> Any:
        """Take the operators of NumPy's scalars; reject its functions."""
        from tiledsl.language import misuse

        operator = misuse.operator_of(ufunc, _elementwise())
        if operator is None or method != "__call__" or options:
            raise misuse.wrong_function(ufunc, describe(self))
        return operator(*map(misuse.scalar_of, inputs))

    def __array_function__(self, function: Any, *_: object) -> NoReturn:
        from tiledsl.language import misuse

        raise misuse.wrong_function(function, describe(self))

    def __array__(self, *_: object, **options: object) -> NoReturn:
        raise KernelError(f"expected values known at compile time, found {describe(self)}")

    # --- operators ------------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Value:
        return _elementwise().add(self, other)

    def __radd__(self, other: Operand) -> Value:
        return _elementwise().add(other, self)

    def __sub__(self, other: Operand) -> Value:
        return _elementwise().sub(self, other)

    def __rsub__(self, other: Operand) -> Value:
        return _elementwise().sub(other, self)

    def __mul__(self, other: Operand) -> Value:
        return _elementwise().mul(self, other)

    def __rmul__(self, other: Operand) -> Value:
        return _elementwise().mul(other, self)

    def __truediv__(self, other: Operand) -> Value:
        return _elementwise().truediv(self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return _elementwise().truediv(other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return _elementwise().floordiv(self, other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return _elementwise().floordiv(other, self)

    def __mod__(self, other: Operand) -> Value:
        return _elementwise().mod(self, other)

    def __rmod__(self, other: Operand) -> Value:
        return _elementwise().mod(other, self)

    def __divmod__(self, other: Operand) -> tuple[Value, Value]:
        return _elementwise().floordiv(self, other), _elementwise().mod(self, other)

    def __rdivmod__(self, other: Operand) -> tuple[Value, Value]:
        return _elementwise().floordiv(other, self), _elementwise().mod(other, self)

    def __pow__(self, other: Operand) -> Value:
        return _elementwise().power(self, other)

    def __rpow__(self, other: Operand) -> Value:
        return _elementwise().power(other, self)

    def __matmul__(self, other: Operand) -> NoReturn:
        raise KernelError("expected an elementwise operator, found `@`", hint="use tile.dot(a, b)")

    def __lshift__(self, other: Operand) -> Value:
        return _elementwise().shift_left(self, other)

    def __rlshift__(self, other: Operand) -> Value:
        return _elementwise().shift_left(other, self)

    def __rshift__(self, other: Operand) -> Value:
        return _elementwise().shift_right(self, other)

    def __rrshift__(self, other: Operand) -> Value:
        return _elementwise().shift_right(other, self)

    def __and__(self, other: Operand) -> Value:
        return _elementwise().bit_and(self, other)

    def __rand__(self, other: Operand) -> Value:
        return _elementwise().bit_and(other, self)

    def __or__(self, other: Operand) -> Value:
        return _elementwise().bit_or(self, other)

    def __ror__(self, other: Operand) -> Value:
        return _elementwise().bit_or(other, self)

    def __xor__(self, other: Operand) -> Value:
        return _elementwise().bit_xor(self, other)

    def __rxor__(self, other: Operand) -> Value:
        return _elementwise().bit_xor(other, self)

    def __neg__(self) -> Value:
        return _elementwise().negative(self)

    def __pos__(self) -> Value:
        return _elementwise().positive(self)

    def __invert__(self) -> Value:
        return _elementwise().invert(self)

    def __abs__(self) -> Value:
        return _elementwise().absolute(self)

    def __eq__(self, other: Operand) -> Value:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _elementwise().equal(self, other)

    def __ne__(self, other: Operand) -> Value:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _elementwise().not_equal(self, other)

    def __lt__(self, other: Operand) -> Value:
        return _elementwise().less(self, other)

    def __le__(self, other: Operand) -> Value:
        return _elementwise().less_equal(self, other)

    def __gt__(self, other: Operand) -> Value:
        return _elementwise().greater(self, other)

    def __ge__(self, other: Operand) -> Value:
        return _elementwise().greater_equal(self, other)


# --- making ops ----------------------------------------------------------------------------------


def wrap(handle: ir.Value, dtype: DType, shape: Shape) -> Value:
    """Return the value of an op just made at the end of the innermost region."""
    return Value(handle, dtype, shape, current().region)


def build_all(
    op: type[Op],
    *operands: Value | Sequence[Value] | None,
    types: Sequence[tuple[DType, Shape]],
    **attributes: object,
) -> list[Value]:
    """Build an op of the `tile` dialect.

    Args:
        op: Its class.
        *operands: One a field, in order; None for an absent one, a sequence for a variadic one.
        types: Element type and shape of each result.
        **attributes: Its attributes; None leaves one out.
    """
    builder = current()
    handles = [
        v if v is None else v.handle if isinstance(v, Value) else [x.handle for x in v]
        for v in operands
    ]
    made = op.build(
        *handles,
        results=[tile_of(dtype, shape) for dtype, shape in types],
        loc=builder.location(),
        ip=builder.region.ip,
        **attributes,
    )
    results = made.operation.results
    return [wrap(results[i], dtype, shape) for i, (dtype, shape) in enumerate(types)]


def build(
    op: type[Op],
    *operands: Value | Sequence[Value] | None,
    dtype: DType,
    shape: Shape,
    **attributes: object,
) -> Value:
    """Build an op of the `tile` dialect that has one result; see `build_all`."""
    return build_all(op, *operands, types=[(dtype, shape)], **attributes)[0]


def upstream(
    name: str,
    *operands: Value,
    dtype: DType | None = None,
    attributes: Mapping[str, ir.Attribute | None] | None = None,
) -> Value:
    """Build an elementwise op of `arith` or `math`.

    Args:
        name: As "arith.addi".
        *operands: Values of one shape.
        dtype: The result's element type, if not the first operand's.
        attributes: Its attributes; those given as None are left out.
    """
    first = operands[0]
    result = first.dtype if dtype is None else dtype
    given = {key: value for key, value in (attributes or {}).items() if value is not None}
    made = current().create(
        name, [v.handle for v in operands], [tile_of(result, first.shape)], given
    )
    return wrap(made.results[0], result, first.shape)


def constant(value: Number, dtype: DType, shape: Shape = ()) -> Value:
    """Return a constant, rounded to `dtype`; a tile of it where `shape` is given.

    Raises:
        KernelError: An integer does not fit the type.
    """
    attribute = constant_attribute(value, dtype, shape)
    made = current().create("arith.constant", [], [tile_of(dtype, shape)], {"value": attribute})
    return wrap(made.results[0], dtype, shape)


def loading(value: object) -> str | None:
    """Return a hint where a number was expected and a pointer is what was found."""
    value = unwrap(value)
    if isinstance(value, Value) and value.dtype.is_ptr():
        return "an array is a pointer in a kernel: tile.load(x) reads what x points to"
    return None


def describe(value: object) -> str:
    """Say what an operand is: type and shape of a value, type and text of a Python object."""
    value = unwrap(value)
    if isinstance(value, Value):
        return value.type.words
    if value is None:
        return "None"
    return f"Python {type(value).__name__} {value!r:.60}"
