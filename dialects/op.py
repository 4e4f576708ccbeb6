"""An op is one class: name, operands, attributes, results, rule and prose in one place.

A subclass of `Op` declares typed fields; from them come the IRDL that MLIR verifies against
(`irdl_text`), the accessors (`op.ptrs`) and the builder (`LoadOp.build(...)`). Nothing is written
twice. The classes are registered with the bindings, so walking a module yields instances of them
and `isinstance(op, LoadOp)` is how a pass asks for an op.

Field names stay close to upstream's coming `mlir.dialects.ext`, so that it can replace this base.

What IRDL cannot say (one shape throughout, say) stands in `verify`, which `contracts.check` calls.
IRDL ops have no traits: no op here is a terminator, and purity is our own `pure` flag, which our
own CSE and DCE read. A region would need a terminator, so a combine function is a symbol instead.
IRDL gives all members of a variadic group one type, so a group whose members differ is declared as
`SLOTS` optional operands (results), and the op carries `operandSegmentSizes` (`resultSegmentSizes`)
of as many entries, ones before zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

from mlir import ir
from mlir.dialects._ods_common import _cext

Built: TypeAlias = ir.Value | Sequence[ir.Value] | None


@dataclass(frozen=True)
class Kind:
    """A set of types: how IRDL states it, and the words of an error message."""

    irdl: Callable[[Callable[[str], str]], str]
    """Given a function that emits one IRDL line and returns its SSA name, emit this constraint."""
    words: str


def _base(of: str) -> Callable[[Callable[[str], str]], str]:
    return lambda emit: emit(f"irdl.base {of}")


Any_ = Kind(lambda emit: emit("irdl.any"), "anything")
Tile = Kind(_base('"!builtin.tensor"'), "a tile")
I32 = Kind(lambda emit: emit("irdl.is i32"), "an i32")
I1 = Kind(lambda emit: emit("irdl.is i1"), "an i1")


def either(*kinds: Kind) -> Kind:
    """Return the union of `kinds`."""

    def emit_all(emit: Callable[[str], str]) -> str:
        names = [kind.irdl(emit) for kind in kinds]
        return emit(f"irdl.any_of({', '.join(names)})")

    return Kind(emit_all, " or ".join(kind.words for kind in kinds))


def dialect_type(name: str, words: str) -> Kind:
    """Return the types made by the dialect type `name`, as "tile.ptr"."""
    dialect, _, local = name.partition(".")
    return Kind(_base(f"@{dialect}::@{local}"), words)


class Field:
    """One declared part of an op; `name` is set by the class that it stands in."""

    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class _Values(Field):
    variadicity: ClassVar[str] = ""

    def __init__(self, kind: Kind, doc: str) -> None:
        self.kind = kind
        self.doc = doc


class Operand(_Values):
    """Exactly one operand."""

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        if op is None:
            return self
        return op.operand_group(self)[0]


class OptionalOperand(_Values):
    """No operand or one; reads as None where there is none."""

    variadicity = "optional "

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        if op is None:
            return self
        group = op.operand_group(self)
        return group[0] if group else None


SLOTS = 8
"""The most members of a variadic group."""


class VariadicOperand(_Values):
    """Up to `slots` operands of any types; reads as a list. The op has no other operand."""

    def __init__(self, kind: Kind, doc: str, slots: int = SLOTS) -> None:
        super().__init__(kind, doc)
        self.slots = slots

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        return self if op is None else op.operand_group(self)


class Result(_Values):
    """Exactly one result; upstream's own `op.result` reads it too."""

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        if op is None:
            return self
        return op.operation.results[type(op).result_fields.index(self)]


class VariadicResult(_Values):
    """Up to `SLOTS` results of any types; reads as a list. The op has no other result."""

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        return self if op is None else list(op.operation.results)


class Attr(Field):
    """An attribute: an int, a bool, a str, a list of ints or a symbol.

    Args:
        python: The Python type it reads as: `int`, `bool`, `str`, `list` (of ints), or `Symbol`.
        doc: What it means.
        default: What it reads as where absent; given, the attribute is optional.
        choices: The only values of a string attribute.
    """

    REQUIRED: ClassVar[object] = object()

    def __init__(
        self,
        python: type,
        doc: str,
        default: object = REQUIRED,
        choices: Sequence[str] = (),
    ) -> None:
        self.python = python
        self.doc = doc
        self.default = default
        self.choices = tuple(choices)

    @property
    def required(self) -> bool:
        """Whether every such op carries it."""
        return self.default is Attr.REQUIRED

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        if op is None:
            return self
        attributes = op.operation.attributes
        if self.name not in attributes:
            return None if self.required else self.default
        return from_attribute(attributes[self.name])


class Symbol(str):
    """A symbol's name, to build or read a symbol reference attribute."""


def to_attribute(value: object) -> ir.Attribute:
    """Return `value` as an attribute: ints are i64, lists are arrays of i64."""
    match value:
        case ir.Attribute():
            return value
        case bool():
            return ir.BoolAttr.get(value)
        case int():
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        case Symbol():
            return ir.FlatSymbolRefAttr.get(value)
        case str():
            return ir.StringAttr.get(value)
        case list() | tuple():
            return ir.DenseI64ArrayAttr.get(list(cast("Sequence[int]", value)))
        case _:
            raise TypeError(f"expected an int, bool, str or list of ints, found {value!r}")


def from_attribute(attribute: ir.Attribute) -> Any:
    """Return the Python value of `attribute`, the inverse of `to_attribute`."""
    if isinstance(attribute, ir.FlatSymbolRefAttr):
        return Symbol(attribute.value)
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return list(attribute)
    return cast("Any", attribute).value


class _DialectClass:
    """Makes the `ir.Dialect` class that registration asks for, once a dialect."""

    made: ClassVar[dict[str, type]] = {}

    @classmethod
    def of(cls, namespace: str) -> type:
        if namespace not in cls.made:
            made = type(namespace, (ir.Dialect,), {"DIALECT_NAMESPACE": namespace})
            cls.made[namespace] = _cext.register_dialect(made)
        return cls.made[namespace]


_cext.globals.append_dialect_search_prefix("tiledsl.dialects")


class Op(ir.OpView):
    """Base of every op of our dialects; see the module's docstring.

    Subclass as `class LoadOp(Op, name="tile.load")`; say `pure=True` where the result depends on
    the operands and attributes alone and nothing else happens.
    """

    _ODS_REGIONS = (0, True)
    pure: ClassVar[bool] = False
    operand_fields: ClassVar[tuple[_Values, ...]] = ()
    result_fields: ClassVar[tuple[_Values, ...]] = ()
    attr_fields: ClassVar[tuple[Attr, ...]] = ()

    def __init_subclass__(cls, name: str, pure: bool = False) -> None:
        cls.OPERATION_NAME = name  # pyright: ignore[reportConstantRedefinition] (upstream's spelling)
        cls.pure = pure
        fields = [f for f in vars(cls).values() if isinstance(f, Field)]
        operand_types = (Operand, OptionalOperand, VariadicOperand)
        cls.operand_fields = tuple(f for f in fields if isinstance(f, operand_types))
        cls.result_fields = tuple(f for f in fields if isinstance(f, Result | VariadicResult))
        cls.attr_fields = tuple(f for f in fields if isinstance(f, Attr))
        _cext.register_operation(_DialectClass.of(name.partition(".")[0]), replace=True)(cls)

    @classmethod
    def _is_variadic(cls) -> bool:
        return any(isinstance(f, VariadicOperand) for f in cls.operand_fields)

    @classmethod
    def _needs_segments(cls) -> bool:
        return sum(isinstance(f, OptionalOperand) for f in cls.operand_fields) > 1

    @classmethod
    def _operand_slots(cls) -> int:
        return next(f.slots for f in cls.operand_fields if isinstance(f, VariadicOperand))

    def operand_group(self, field: _Values) -> list[ir.Value]:
        """Return the operands that belong to `field`, in order."""
        cls = type(self)
        at = cls.operand_fields.index(field)
        operands = self.operation.operands
        if cls._is_variadic():
            return list(operands)
        if cls._needs_segments():
            sizes = list(ir.DenseI32ArrayAttr(self.operation.attributes["operandSegmentSizes"]))
            start = sum(sizes[:at])
            return [operands[i] for i in range(start, start + sizes[at])]
        loose = len(operands) - (len(cls.operand_fields) - 1)
        start = 0
        for other in cls.operand_fields[:at]:
            start += 1 if isinstance(other, Operand) else loose
        size = 1 if isinstance(field, Operand) else loose
        return [operands[i] for i in range(start, start + size)]

    @classmethod
    def build(
        cls,
        *operands: Built,
        results: Sequence[ir.Type] = (),
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
        **attributes: object,
    ) -> Any:
        """Build the op: operands in field order (None for an absent one), result types, attributes.

        An attribute given as None is left out. Returns the op, an instance of this class.
        """
        groups = [
            [] if value is None else [value] if isinstance(value, ir.Value) else list(value)
            for value in operands
        ]
        if len(groups) != len(cls.operand_fields):
            names = ", ".join(f.name for f in cls.operand_fields)
            raise TypeError(f"{cls.OPERATION_NAME} takes ({names}), found {len(groups)} operands")
        attrs = {
            name: to_attribute(value) for name, value in attributes.items() if value is not None
        }
        if cls._is_variadic():
            attrs["operandSegmentSizes"] = _slots(len(groups[0]), cls._operand_slots())
        elif cls._needs_segments():
            attrs["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([len(g) for g in groups])
        if any(isinstance(field, VariadicResult) for field in cls.result_fields):
            attrs["resultSegmentSizes"] = _slots(len(results), SLOTS)
        create = cast("Any", ir.Operation).create  # the bindings' stub leaves types open
        operation = create(
            cls.OPERATION_NAME,
            results=list(results),
            operands=[value for group in groups for value in group],
            attributes=attrs,
            loc=loc,
            ip=ip,
        )
        return operation.opview

    def verify(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return what is wrong with this op beyond what IRDL checks, or None."""
        return None

    def verify_attributes(self) -> str | None:
        """Return the first attribute outside its choices, or None."""
        for field in type(self).attr_fields:
            value = field.__get__(self, type(self))
            if field.choices and value is not None and value not in field.choices:
                return f"expected `{field.name}` in {', '.join(field.choices)}, found {value}"
        return None


def _slots(used: int, slots: int) -> ir.Attribute:
    """Return the segment sizes of a variadic group with `used` members."""
    if used > slots:
        raise ValueError(f"expected at most {slots} values, found {used}")
    return ir.DenseI32ArrayAttr.get([1] * used + [0] * (slots - used))


def irdl_text(dialect: str, types: Sequence[tuple[str, int]], ops: Sequence[type[Op]]) -> str:
    """Return the IRDL of a dialect.

    Args:
        dialect: Its namespace.
        types: Name and number of parameters of each of its types.
        ops: Its op classes.
    """
    lines = [f"irdl.dialect @{dialect} {{"]
    for name, parameters in types:
        lines.append(f"  irdl.type @{name} {{")
        lines += [f"    %p{i} = irdl.any" for i in range(parameters)]
        listed = ", ".join(f"parameter{i}: %p{i}" for i in range(parameters))
        lines += [f"    irdl.parameters({listed})", "  }"]
    for op in ops:
        lines += _op_irdl(op)
    lines.append("}")
    return "\n".join(lines)


def _op_irdl(op: type[Op]) -> list[str]:
    lines = [f"  irdl.operation @{op.OPERATION_NAME.partition('.')[2]} {{"]

    def emit(text: str) -> str:
        name = f"%c{len(lines)}"
        lines.append(f"    {name} = {text}")
        return name

    for keyword, fields in (("operands", op.operand_fields), ("results", op.result_fields)):
        if fields:
            parts = [part for field in fields for part in _irdl_values(field, emit)]
            lines.append(f"    irdl.{keyword}({', '.join(parts)})")
    required = [f for f in op.attr_fields if f.required]
    if required:
        parts = [f'"{f.name}" = {emit("irdl.any")}' for f in required]
        lines.append(f"    irdl.attributes {{ {', '.join(parts)} }}")
    lines.append("  }")
    return lines


def _irdl_values(field: _Values, emit: Callable[[str], str]) -> list[str]:
    """Return a field as IRDL declares it; each slot of a variadic group is constrained alone."""
    if isinstance(field, VariadicOperand | VariadicResult):
        slots = field.slots if isinstance(field, VariadicOperand) else SLOTS
        return [f"{field.name}{i}: optional {field.kind.irdl(emit)}" for i in range(slots)]
    return [f"{field.name}: {field.variadicity}{field.kind.irdl(emit)}"]
