r"""Read LLVM's AMDGPU assembly text: code, labels, kernel descriptors and constant data.

The text is what codegen emitted, so this is a reader of LLVM's spelling and no assembler: it takes
the form in which LLVM prints an operand, knows nothing of encodings, and leaves the meaning of a
mnemonic to the families (`decode`).

An instruction is a mnemonic, operands between commas, then modifiers between blanks:

    v_fma_f32 v1, -|v2|, s4, 0x3f000000 clamp mul:2
    v_dual_mov_b32 v0, 0 :: v_dual_lshlrev_b32 v1, 3, v2       <- `dual` holds the second half

Scalar registers are one numbered file: s0 to s105, then VCC and what follows it under the numbers
that the hardware encodes (`SCALARS`); flat_scratch and xnack_mask, which some chips alias to
others, lie above. Accumulation registers a0 to a255 are vector registers 256 to 511.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.source_lines import Source

VCC, TTMP, M0, EXEC, FLAT_SCRATCH = 106, 108, 124, 126, 128
ACCUMULATION = 256
"""Number of a0 among the vector registers."""
SCALARS: dict[str, tuple[int, int]] = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1), "m0": (M0, 1),
    "flat_scratch": (FLAT_SCRATCH, 2), "flat_scratch_lo": (FLAT_SCRATCH, 1),
    "flat_scratch_hi": (FLAT_SCRATCH + 1, 1), "xnack_mask": (130, 2),
    "xnack_mask_lo": (130, 1), "xnack_mask_hi": (131, 1),
}  # fmt: skip
"""Named scalar registers: number and how many."""


@dataclass(frozen=True)
class Register:
    """A register or several in a row.

    Attributes:
        file: "v" or "s".
        index: The first one's number.
        count: How many.
        half: Which 16 bits are meant (`v5.l` 0, `v5.h` 1), None where the text says nothing.
        negated: `-x`, applied after `absolute`.
        absolute: `|x|`.
        extended: `sext(x)`, of SDWA's integers.
    """

    file: str
    index: int
    count: int = 1
    half: int | None = None
    negated: bool = False
    absolute: bool = False
    extended: bool = False


@dataclass(frozen=True)
class Constant:
    """A number: an inline constant or a literal.

    Attributes:
        integer: Its value, where it is spelled as an integer.
        real: Its value, where it is spelled as a decimal fraction.
        literal: It is spelled in hexadecimal: a 32-bit literal, not an inline constant.
        negated: As for `Register`.
        absolute: As for `Register`.
    """

    integer: int | None = None
    real: float | None = None
    literal: bool = False
    negated: bool = False
    absolute: bool = False


@dataclass(frozen=True)
class Name:
    """What is neither: a label, a symbol's address, `off`, `null`, `src_scc`, `hwreg(...)`."""

    text: str
    negated: bool = False
    absolute: bool = False


Operand = Register | Constant | Name


@dataclass(frozen=True)
class Parsed:
    """One instruction's text, taken apart.

    Attributes:
        text: As it stands.
        mnemonic: In full.
        stem: The mnemonic without its encoding.
        encoding: "", "e32", "e64", "dpp", "e64_dpp" or "sdwa".
        operands: Between commas.
        modifiers: Words and `word:value`s at the end; a mere word's value is "".
        rest: Everything after the mnemonic.
        dual: The second instruction of a VOPD pair.
        source: The author's line.
    """

    text: str
    mnemonic: str
    stem: str
    encoding: str
    operands: tuple[Operand, ...]
    modifiers: Mapping[str, str]
    rest: str
    dual: Parsed | None = None
    source: Source | None = None

    def integer(self, modifier: str, default: int = 0) -> int:
        """Return the value of `modifier:value` as an integer, or `default` where it is absent."""
        value = self.modifiers.get(modifier)
        return default if value is None else int(value, 0)

    def bits(self, modifier: str) -> tuple[int, ...] | None:
        """Return the value of `modifier:[1,0]`; None where it is absent."""
        value = self.modifiers.get(modifier)
        return None if value is None else tuple(int(one, 0) for one in value.strip("[]").split(","))

    def __contains__(self, modifier: str) -> bool:
        return modifier in self.modifiers


_ENCODING = re.compile(r"_(e64_dpp|e32|e64|dpp|sdwa)$")
_REGISTER = re.compile(r"(ttmp|v|s|a)(?:(\d+)|\[(\d+)(?::(\d+))?\])(?:\.([lh]))?$")
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)$")
_REAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?$")
_WRAPPED = re.compile(r"(neg|abs|sext|lit)\((.*)\)$")
_MODIFIER = re.compile(r"([a-z]\w*)(?::(.*))?$", re.DOTALL)
_NO_OPERANDS = ("s_waitcnt", "s_delay_alu", "s_sendmsg", "s_wait_alu", "s_waitcnt_depctr")
"""Their operand is a language of its own, left in `rest`."""


def parse_operand(text: str) -> Operand:
    """Read one operand.

    Raises:
        CompilerBug: A register has a number that no chip has.
    """
    if _REAL.match(text):
        return Constant(real=float(text))
    if _INTEGER.match(text):
        return Constant(integer=int(text, 0), literal="x" in text)
    if text.startswith("-"):
        inner = parse_operand(text[1:])
        return replace(inner, negated=not inner.negated)
    if text.startswith("|") and text.endswith("|"):
        return replace(parse_operand(text[1:-1]), absolute=True)
    wrapped = _WRAPPED.match(text)
    if wrapped is not None:
        return _wrap(wrapped[1], parse_operand(wrapped[2]))
    if text in SCALARS:
        return Register("s", *SCALARS[text])
    register = _REGISTER.match(text)
    return Name(text) if register is None else _register(register, text)


def _wrap(function: str, inner: Operand) -> Operand:
    if function == "neg":
        return replace(inner, negated=not inner.negated)
    if function == "abs":
        return replace(inner, absolute=True)
    if function == "sext" and isinstance(inner, Register):
        return replace(inner, extended=True)
    return inner


_FILES = {
    "v": ("v", 0, 256),
    "a": ("v", ACCUMULATION, 256),
    "s": ("s", 0, 106),
    "ttmp": ("s", TTMP, 16),
}
"""Of each spelling: the file, the number of the first, how many there are."""


def _register(match: re.Match[str], text: str) -> Register:
    file, base, limit = _FILES[match[1]]
    first = int(match[2] or match[3])
    last = int(match[4] or first)
    if not first <= last < limit:
        raise CompilerBug(f"AMDGPU assembly names a register that is none: {text}")
    half = None if match[5] is None else int(match[5] == "h")
    return Register(file, base + first, last - first + 1, half)


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator (a comma, or " " for blanks) that is inside no brackets or quotes."""
    pieces: list[str] = []
    depth, quoted, start = 0, False, 0
    for position, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif depth == 0 and (letter == separator or (separator == " " and letter == "\t")):
            pieces.append(text[start:position].strip())
            start = position + 1
    pieces.append(text[start:].strip())
    return [piece for piece in pieces if piece]


def parse_instruction(text: str, source: Source | None = None) -> Parsed:
    """Take one instruction apart.

    Raises:
        CompilerBug: It is not written as LLVM writes instructions.
    """
    if " :: " in text:
        first, second = text.split(" :: ", 1)
        half = parse_instruction(second.strip(), source)
        return replace(parse_instruction(first.strip(), source), text=text, dual=half)
    mnemonic, _, rest = text.replace("\t", " ").partition(" ")
    encoding = _ENCODING.search(mnemonic)
    stem = mnemonic if encoding is None else mnemonic[: encoding.start()]
    rest = rest.strip()
    operands: list[Operand] = []
    modifiers: dict[str, str] = {}
    if rest and mnemonic not in _NO_OPERANDS:
        *pieces, last = _split(rest, ",")
        final, *words = _split(last, " ")
        operands = [parse_operand(piece) for piece in [*pieces, final]]
        for word in words:
            match = _MODIFIER.match(word)
            if match is None:
                raise CompilerBug(f"AMDGPU assembly has an unreadable modifier {word!r}: {text}")
            modifiers[match[1]] = match[2] or ""
    return Parsed(
        text, mnemonic, stem, "" if encoding is None else encoding[1], tuple(operands), modifiers,
        rest, None, source,
    )  # fmt: skip


VECTOR_BITS = (1 << 512) - 1
"""The bits of vector registers in what `registers_of` returns."""


def registers_of(operands: Sequence[Operand]) -> int:
    """Return the registers that operands name, a bit each: bit i is v[i], bit 512 + i is s[i]."""
    bits = 0
    for one in operands:
        if isinstance(one, Register):
            base = one.index + (512 if one.file == "s" else 0)
            bits |= ((1 << one.count) - 1) << base
    return bits
