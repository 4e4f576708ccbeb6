"""Move registers between the lanes of a warp, as a `LaneShuffle` plans it.

Three linear steps: every lane picks the registers that it sends, words travel, every lane puts what
it gets into place. Picking and placing depend on the lane, so they are selects, one for each
independent mask; several small elements travel in one word.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import layout_f2 as f2
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import i32, integer
from tiledsl.targets.gpu.place import Place
from tiledsl.transforms.conversion_plan import LaneShuffle, Round


def shuffle_lanes(place: Place, value: ir.Value, plan: LaneShuffle) -> ir.Value:
    """Return a vector of registers after the conversion that `plan` describes."""
    type_ = emit.scalar_of(value.type)
    if type_ == integer(1):
        value = arith.extui(emit.resized(value.type, integer(8)), value)
    element = emit.scalar_of(value.type)
    picked = exchange(place, value, plan.pick)
    received: list[list[ir.Value]] = []
    for one in plan.rounds:
        sent = emit.shuffle(picked, [int(plan.bases[v]) for v in one.values])
        words = emit.to_words(sent)
        received.append(_travel(place, words, plan, one) if plan.moves(one) else words)
    placed = _put_by_bytes(place, received, plan, element)
    if placed is None:
        placed = _put(place, received, plan, element)
    result = emit.shuffle(placed, plan.distinct)
    return result if type_ == element else arith.trunci(emit.resized(result.type, type_), result)


def _put(
    place: Place, received: Sequence[Sequence[ir.Value]], plan: LaneShuffle, element: ir.Type
) -> ir.Value:
    """Put values into the registers of the result, by selects."""
    got: dict[int, ir.Value] = {}
    for one, words in zip(plan.rounds, received, strict=True):
        vector = emit.from_words(words, emit.vector_of(len(one.values), element))
        got.update(zip(one.values, emit.elements(vector), strict=True))
    return exchange(place, emit.from_elements([got[int(v)] for v in plan.value]), plan.place)


def _put_by_bytes(
    place: Place, received: Sequence[Sequence[ir.Value]], plan: LaneShuffle, element: ir.Type
) -> ir.Value | None:
    """Put small values into place by picking bytes of two words, in an order for each lane.

    None where a word has values from more than two, or the machine has no such instruction.
    """
    machine, bytes_ = place.machine, emit.width_of(element) // 8
    per_word = 4 // bytes_ if bytes_ else 1
    masks = {mask for mask in plan.place if mask}
    count = len(plan.value)
    if not machine.permutes_bytes or len(masks) != 1 or per_word < 2 or count % per_word:
        return None
    (mask,) = masks
    if mask >= per_word:
        return None
    found: dict[int, tuple[ir.Value, int]] = {}
    for one, words in zip(plan.rounds, received, strict=True):
        for i, value in enumerate(one.values):
            found[value] = words[i // per_word], i % per_word * bytes_
    parity = place.linear([int(m != 0) for m in plan.place])
    assert parity is not None  # some lanes' masks are not 0
    condition = emit.compare("ne", parity, i32(0))
    made: list[ir.Value] = []
    for first in range(0, count, per_word):
        here = [found[int(plan.value[first + i])] for i in range(per_word)]
        sources = list(dict.fromkeys(word for word, _ in here))
        if len(sources) > 2:
            return None
        starts = [start + 4 * sources.index(word) for word, start in here]
        plain, turned = (
            [starts[i ^ turn] + byte for i in range(per_word) for byte in range(bytes_)]
            for turn in (0, mask)
        )
        word = machine.permute_bytes(
            sources[0], sources[-1], turned, where=condition, otherwise=plain
        )
        made.append(word)
    return emit.from_words(made, emit.vector_of(count, element))


def _travel(
    place: Place, words: Sequence[ir.Value], plan: LaneShuffle, one: Round
) -> list[ir.Value]:
    machine = place.machine
    if plan.is_butterfly:
        return [machine.shuffle_xor(word, one.lane_offset) for word in words]
    asked = place.linear(plan.lanes)
    if asked is None:
        lane = i32(one.lane_offset)
    else:
        lane = arith.xori(asked, i32(one.lane_offset)) if one.lane_offset else asked
    return [machine.shuffle_index(word, lane) for word in words]


def exchange(place: Place, value: ir.Value, masks: Sequence[int]) -> ir.Value:
    """Return `value` with register r holding register `r ^ m`, m the xor of the lane's masks.

    Args:
        place: The thread's.
        value: A vector of a power of two of registers.
        masks: One a lane bit: what that bit adds to m if it is set.
    """
    kept = f2.spread(f2.independent(masks))
    basis = [masks[i] for i in kept]
    span = f2.Span(basis)
    # Which basis masks each lane bit turns on.
    uses = [span.solve(mask) or 0 for mask in masks]
    registers = range(emit.registers_of(value))
    for number, mask in enumerate(basis):
        parity = place.linear([use >> number & 1 for use in uses])
        assert parity is not None  # the bit that brought the mask into the basis uses it
        condition = emit.compare("ne", parity, i32(0))
        turned = emit.shuffle(value, [r ^ mask for r in registers])
        value = emit.select(condition, turned, value)
    return value


def shuffle_xor(place: Place, value: ir.Value, mask: int) -> ir.Value:
    """Return the registers of the lane whose number differs in the bits of `mask`."""
    words = [place.machine.shuffle_xor(word, mask) for word in emit.to_words(value)]
    return emit.from_words(words, value.type)


def shuffle_index(place: Place, value: ir.Value, lane: ir.Value) -> ir.Value:
    """Return the registers of the lane with that number."""
    words = [place.machine.shuffle_index(word, lane) for word in emit.to_words(value)]
    return emit.from_words(words, value.type)
