r"""PTX text, as LLVM's NVPTX back end writes it, taken apart: variables, parameters, instructions.

Names are resolved here. An inline assembly block may declare registers and labels in a scope of its
own (`{ .reg .pred p; ... }`), so every register leaves under a name that is unique in its kernel
and with its declared type; every label that is a target is unique too. What follows needs no
scopes.

    @%p1 ld.global.v2.b32 {%r1, %r2}, [%rd1+8];   // a comment
becomes
    Parsed(opcode="ld.global.v2.b32", guard=Guard(Register("%p1", "pred"), False),
           operands=(Vector((Register("%r1", "b32"), ...)), Address(Register("%rd1", "b64"), 8)),
           ...)

Only the text's form is checked here; what an opcode means is `decode`'s.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tiledsl.dialects.diagnostics import CompilerBug

# --- operands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register: its unique name and the type it was declared with, as "b32"."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, as "%tid.x"."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant: an integer, or a float's bits where `type` is "f32" or "f64"."""

    value: int
    type: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, a parameter, a function or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b}`, or the `(a, b)` of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`; of a tensor copy `[base, {coordinates}]`."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | None = None


Operand = Register | Special | Immediate | Symbol | Sink | Vector | Pair | Negated | Address


# --- statements ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p` before an instruction."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Parsed:
    """One instruction.

    Attributes:
        opcode: With all its modifiers, as "add.rn.ftz.f32".
        operands: In the order of the text.
        guard: The predicate that it is under.
        text: As it stands, on one line.
        line: Index of the text's line where it begins.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str
    line: int

    @property
    def stem(self) -> str:
        """What comes before the first dot."""
        return self.opcode.split(".", 1)[0]

    @property
    def modifiers(self) -> list[str]:
        """What comes after it, apart."""
        return self.opcode.split(".")[1:]


@dataclass(frozen=True, slots=True)
class Label:
    """A place that branches name."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A variable of the module or of a kernel.

    Attributes:
        name: Unique in its module.
        space: "global", "const", "shared", "local" or "param".
        size: Bytes; 0 for an array whose size the launch gives.
        alignment: Bytes.
        element: Bytes of one element.
        initial: Its elements: integers, or the (name, offset) of a variable whose address it holds.
    """

    name: str
    space: str
    size: int
    alignment: int
    element: int
    initial: tuple[int | tuple[str, int], ...] = ()


@dataclass
class Function:
    """One kernel.

    Attributes:
        name: Its symbol.
        parameters: In order; a `Variable` of space "param" each.
        body: Labels and instructions.
        variables: What it declares inside: "local", "shared" and the "param" of its calls.
        tables: What each `.branchtargets` label lists.
        directives: What stands between parameters and body, as "reqntid": (128,).
    """

    name: str
    parameters: Sequence[Variable]
    body: list[Label | Parsed] = field(default_factory=list["Label | Parsed"])
    variables: list[Variable] = field(default_factory=list[Variable])
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict[str, "tuple[int, ...]"])


@dataclass
class Module:
    """What a text holds: its variables, and its kernels by name."""

    variables: list[Variable] = field(default_factory=list[Variable])
    kernels: dict[str, Function] = field(default_factory=dict[str, Function])


WIDTHS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "f16x2": 32,
    "bf16": 16,
    "bf16x2": 32,
    "f32": 32,
    "f64": 64,
}
"""Bits of a register or a variable's element of each type."""

# --- reading a module ----------------------------------------------------------------------------

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NOT_CODE = re.compile(
    r"^[ \t]*\.(?:loc|file|version|target|address_size|noreturn)\b[^\n]*", re.MULTILINE
)
_DEBUG_SECTIONS = re.compile(r"^[ \t]*\.section\b", re.MULTILINE)
_FUNCTION = re.compile(
    r"(?P<linkage>(?:\.(?:visible|weak|extern)\s+)*)\.(?P<kind>entry|func)\s*"
    r"(?P<result>\([^()]*\))?\s*(?P<name>[\w$.]+)\s*(?:\((?P<parameters>[^()]*)\))?"
)
_DIRECTIVE = re.compile(r"\.(\w+)\s*([\d,\s]*)")
_DECLARATION = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)*\.(?P<space>global|const|shared|local|param)\s+"
    r"(?P<words>(?:\.[\w:]+\s+(?:\d+\s+)?)*)(?P<name>[\w$.%]+)\s*(?P<array>(?:\[\d*\])*)"
    r"\s*(?:=\s*(?P<initial>.*))?$",
    re.DOTALL,
)


def parse(text: str) -> Module:
    """Take a PTX module apart.

    Raises:
        CompilerBug: It is not of the form that LLVM writes.
    """
    end = _DEBUG_SECTIONS.search(text)
    code = text if end is None else text[: end.start()]
    code = _NOT_CODE.sub("", _COMMENT.sub(_blank, code))
    module = Module()
    position = 0
    while True:
        position = _skip_space(code, position)
        if position == len(code):
            return module
        function = _FUNCTION.match(code, position)
        if function is not None:
            position = _function(module, code, function)
            continue
        end_of = code.find(";", position)
        if end_of < 0:
            raise CompilerBug(f"PTX ends inside a statement: {code[position : position + 60]!r}")
        statement = code[position:end_of].strip()
        if not statement.startswith((".pragma", ".alias")):
            module.variables.append(_variable(statement))
        position = end_of + 1


def _blank(match: re.Match[str]) -> str:
    """Return as many lines as a comment takes."""
    return "\n" * match[0].count("\n")


_SPACE = re.compile(r"\s*")


def _skip_space(code: str, position: int) -> int:
    found = _SPACE.match(code, position)
    return position if found is None else found.end()


def _function(module: Module, code: str, head: re.Match[str]) -> int:
    """Read one function; returns where it ends. Only kernels are kept."""
    opening, semicolon = code.find("{", head.end()), code.find(";", head.end())
    if opening < 0 or 0 <= semicolon < opening:
        return semicolon + 1  # a declaration
    closing = _closing_brace(code, opening)
    if head["kind"] == "entry":
        text = head["parameters"] or ""
        declared = [part for part in text.split(",") if part.strip()]
        kernel = Function(head["name"], [_variable(part.strip()) for part in declared])
        for directive in _DIRECTIVE.finditer(code, head.end(), opening):
            numbers = tuple(int(one) for one in re.findall(r"\d+", directive[2]))
            kernel.directives[directive[1]] = numbers
        _Body(code, kernel).read(opening + 1, closing)
        module.kernels[kernel.name] = kernel
    return closing + 1


def _closing_brace(code: str, opening: int) -> int:
    depth = 0
    for brace in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise CompilerBug("PTX ends inside a function")


def _variable(statement: str, name: str | None = None) -> Variable:
    found = _DECLARATION.match(statement)
    if found is None:
        raise CompilerBug(f"PTX that the emulator does not know: `{statement}`")
    words = found["words"].split()
    alignment = int(words[words.index(".align") + 1]) if ".align" in words else 0
    bits = next((WIDTHS[word[1:]] for word in words if word[1:] in WIDTHS), 0)
    if not bits:
        raise CompilerBug(f"a variable without a known type: `{statement}`")
    element = max(bits // 8, 1)
    if ".ptr" in words:  # what it says then is how its pointee is aligned
        alignment = 0
    count = 1
    for extent in re.findall(r"\[(\d*)\]", found["array"]):
        count *= int(extent or 0)
    initial = _initial(found["initial"] or "")
    if found["array"] == "[]" and initial:
        count = len(initial)
    size, alignment = element * count, alignment or element
    return Variable(name or found["name"], found["space"], size, alignment, element, initial)


_INITIAL = re.compile(
    r"(?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})|(?P<number>-?(?:0[xX][0-9a-fA-F]+|\d+))"
    r"|(?:generic\(\s*)?(?P<symbol>[A-Za-z_$%][\w$.]*)\s*\)?(?:\s*(?P<offset>[+-]\s*\d+))?"
)


def _initial(text: str) -> tuple[int | tuple[str, int], ...]:
    values: list[int | tuple[str, int]] = []
    for found in _INITIAL.finditer(text):
        if found["float"]:
            values.append(int(found["float"][2:], 16))
        elif found["number"]:
            values.append(int(found["number"], 0))
        else:
            offset = (found["offset"] or "0").replace(" ", "")
            values.append((found["symbol"], int(offset)))
    return tuple(values)


# --- reading a body ------------------------------------------------------------------------------


class _Scope:
    """What `{ ... }` declares: registers (by name, and by prefix for ranges), and other names."""

    def __init__(self, number: int, parent: _Scope | None) -> None:
        self.suffix = f"@{number}" if parent is not None else ""
        self.parent = parent
        self.registers: dict[str, str] = {}
        self.ranges: dict[str, str] = {}
        self.names: dict[str, str] = {}

    def chain(self) -> Iterator[_Scope]:
        """Yield it and those around it, inner first."""
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


_LABEL = re.compile(r"([$A-Za-z_][\w$]*)\s*:(?!:)")
_OPCODE = re.compile(r"(?:@(?P<not>!?)\s*(?P<guard>[\w$%.]+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*")
_NUMBERED = re.compile(r"(.*?)\d+$")
_RANGE = re.compile(r"([\w$%.]+)<\d+>$")


class _Body:
    """Reads the statements of one kernel, in two rounds: what is declared, and what is done."""

    def __init__(self, code: str, kernel: Function) -> None:
        self._code = code
        self._kernel = kernel
        self._scopes: list[_Scope] = [_Scope(0, None)]
        self._lines = [at.start() for at in re.finditer(r"\n", code)]
        self._names: dict[tuple[int, str], Operand] = {}
        self._read: dict[tuple[int, str], Operand] = {}

    def read(self, position: int, end: int) -> None:
        """Fill the kernel with what stands between two braces."""
        statements: list[tuple[int, _Scope, str]] = []
        scope = self._scopes[0]
        table: str | None = None
        while (position := _skip_space(self._code, position)) < end:
            start = self._code[position]
            if start in "{}":
                scope = self._nested(scope) if start == "{" else self._outer(scope)
                position += 1
                continue
            label = _LABEL.match(self._code, position, end)
            if label is not None:
                table = scope.names[label[1]] = label[1] + scope.suffix
                statements.append((position, scope, label[0]))
                position = label.end()
                continue
            stop = self._code.find(";", position, end)
            if stop < 0:
                raise CompilerBug(f"PTX ends inside a statement of `{self._kernel.name}`")
            statement = self._code[position:stop]
            if statement.startswith("."):
                self._declare(statement, scope, table)
            else:
                statements.append((position, scope, statement))
            position = stop + 1
        for at, inside, statement in statements:
            self._statement(at, inside, statement)

    def _nested(self, scope: _Scope) -> _Scope:
        self._scopes.append(_Scope(len(self._scopes), scope))
        return self._scopes[-1]

    def _outer(self, scope: _Scope) -> _Scope:
        if scope.parent is None:
            raise CompilerBug("unbalanced braces in PTX")
        return scope.parent

    def _declare(self, statement: str, scope: _Scope, table: str | None) -> None:
        word = statement.split(None, 1)[0]
        if word == ".reg":
            self._declare_registers(statement, scope)
        elif word == ".branchtargets":
            names = statement.split(None, 1)[1].split(",")
            self._kernel.tables[str(table)] = tuple(one.strip() + scope.suffix for one in names)
        elif word in (".local", ".shared", ".param", ".global", ".const"):
            variable = _variable(statement)
            unique = variable.name + scope.suffix
            scope.names[variable.name] = unique
            self._kernel.variables.append(_variable(statement, unique))
        elif word not in (".pragma", ".callprototype"):
            raise CompilerBug(f"PTX that the emulator does not know: `{statement.strip()}`")

    def _declare_registers(self, statement: str, scope: _Scope) -> None:
        _, type_, names = statement.split(None, 2)
        for name in (one.strip() for one in names.split(",")):
            ranged = _RANGE.match(name)
            if type_[1:] not in WIDTHS:
                raise CompilerBug(f"a register of unknown type: `{statement}`")
            if ranged is not None:
                scope.ranges[ranged[1]] = type_[1:]
            else:
                scope.registers[name] = type_[1:]

    def _statement(self, position: int, scope: _Scope, statement: str) -> None:
        label = _LABEL.match(statement)
        if label is not None:
            name = scope.names[label[1]]
            if name not in self._kernel.tables:
                self._kernel.body.append(Label(name))
            return
        flat = " ".join(statement.split())
        head = _OPCODE.match(flat)
        if head is None:
            raise CompilerBug(f"PTX that the emulator does not know: `{flat}`")
        guard = None
        if head["guard"]:
            register = self._resolve(head["guard"], scope)
            if not isinstance(register, Register):
                raise CompilerBug(f"expected a predicate, found `{head['guard']}` in `{flat}`")
            guard = Guard(register, bool(head["not"]))
        operands = self._operands(flat, head.end(), scope)
        line = bisect_right(self._lines, position - 1)
        self._kernel.body.append(Parsed(head["opcode"], operands, guard, flat, line))

    def _operands(self, flat: str, position: int, scope: _Scope) -> tuple[Operand, ...]:
        """Read operands; those that hold no commas one by one, as most have been read before."""
        if "{" in flat or "(" in flat:
            return _Operands(flat, position, lambda name: self._resolve(name, scope)).read()
        if position == len(flat):
            return ()
        found: list[Operand] = []
        for spelled in flat[position:].split(","):
            key = id(scope), spelled.strip()
            known = self._read.get(key)
            if known is None:
                if not key[1]:
                    raise CompilerBug(f"expected an operand in `{flat}`")
                reader = _Operands(key[1], 0, lambda name: self._resolve(name, scope))
                (known,) = reader.read()
                self._read[key] = known
            found.append(known)
        return tuple(found)

    def _resolve(self, name: str, scope: _Scope) -> Operand:
        """Return what an identifier means where it stands."""
        key = id(scope), name
        known = self._names.get(key)
        if known is None:
            known = self._names[key] = self._look_up(name, scope)
        return known

    def _look_up(self, name: str, scope: _Scope) -> Operand:
        if name == "_":
            return Sink()
        numbered = _NUMBERED.match(name)
        for each in scope.chain():
            if name in each.registers:
                return Register(name + each.suffix, each.registers[name])
            if name in each.names:
                return Symbol(each.names[name])
            if numbered is not None and numbered[1] in each.ranges:
                return Register(name + each.suffix, each.ranges[numbered[1]])
        return Special(name) if name.startswith("%") else Symbol(name)


_TOKEN = re.compile(
    r"\s*(?:(?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})\b"
    r"|(?P<integer>-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?)(?![\w.])"
    r"|(?P<name>[A-Za-z_$%][\w$.%]*)|(?P<mark>[{}()\[\],|!+-]))"
)


class _Operands:
    """Reads the operands of one instruction."""

    def __init__(self, text: str, position: int, resolve: Callable[[str], Operand]) -> None:
        self._text = text
        self._tokens = self._split(text, position)
        self._at = 0
        self._resolve = resolve

    @staticmethod
    def _split(text: str, position: int) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None or found.lastgroup is None:
                raise CompilerBug(f"operands that the emulator does not know: `{text}`")
            tokens.append((found.lastgroup, found[found.lastgroup]))
            position = found.end()
        return tokens

    def read(self) -> tuple[Operand, ...]:
        """Return them all."""
        items: list[Operand] = []
        while self._at < len(self._tokens):
            items.append(self._alternatives())
            if self._at < len(self._tokens):
                self._expect(",")
        return tuple(items)

    def _mark(self, mark: str) -> bool:
        """Take a mark if it comes next."""
        if self._at < len(self._tokens) and self._tokens[self._at] == ("mark", mark):
            self._at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._mark(mark):
            raise CompilerBug(f"expected `{mark}` in `{self._text}`")

    def _alternatives(self) -> Operand:
        first = self._one()
        return Pair(first, self._one()) if self._mark("|") else first

    def _one(self) -> Operand:
        for opening, closing in ("{}", "()"):
            if self._mark(opening):
                return self._vector(closing)
        if self._mark("["):
            return self._address()
        if self._mark("!"):
            return Negated(self._one())
        if self._at == len(self._tokens) or self._tokens[self._at][0] == "mark":
            raise CompilerBug(f"expected an operand in `{self._text}`")
        kind, word = self._tokens[self._at]
        self._at += 1
        if kind == "name":
            return self._resolve(word)
        if kind == "float":
            return Immediate(int(word[2:], 16), "f32" if word[1] in "fF" else "f64")
        return Immediate(int(word.rstrip("U"), 0))

    def _vector(self, closing: str) -> Vector:
        items: list[Operand] = []
        while not self._mark(closing):
            items.append(self._alternatives())
            self._mark(",")
        return Vector(tuple(items))

    def _address(self) -> Address:
        base = self._one()
        if not isinstance(base, (Register, Symbol, Immediate)):
            raise CompilerBug(f"expected an address in `{self._text}`")
        offset, coordinates = 0, None
        while not self._mark("]"):
            if self._mark(","):
                found = self._one()
                if not isinstance(found, Vector):
                    raise CompilerBug(f"expected coordinates in `{self._text}`")
                coordinates = found
                continue
            self._mark("+")
            more = self._one()
            if not isinstance(more, Immediate):
                raise CompilerBug(f"expected a constant offset in `{self._text}`")
            offset += more.value
        return Address(base, offset, coordinates)
