"""The statements between a kernel's braces, with every name resolved.

An inline assembly block may declare registers and labels in a scope of its own
(`{ .reg .pred p; ... }`), so every register leaves under a name that is unique in its kernel and
with its declared type; every label that is a target is unique too. What follows needs no scopes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.nvptx.emulator.declarations import read_variable, skip_space
from tiledsl.targets.nvptx.emulator.text import (
    WIDTHS,
    Address,
    Function,
    Guard,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Parsed,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)


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


class Body:
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
        while (position := skip_space(self._code, position)) < end:
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
            variable = read_variable(statement)
            unique = variable.name + scope.suffix
            scope.names[variable.name] = unique
            self._kernel.variables.append(read_variable(statement, unique))
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
