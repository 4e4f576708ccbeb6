"""mbarriers: phases, counts, what they order, and how they are misused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

MODES = pytest.mark.parametrize("mode", list(Mode))


def _start(count: int) -> str:
    return f"""
    mov.u32 %r60, s; setp.eq.u32 %p1, %t, 0;
    @%p1 mbarrier.init.shared.b64 [%r60], {count};
    bar.sync 0;
    mul.wide.u32 %d1, %t, 4; add.s64 %d2, %a0, %d1; shl.b32 %r1, %t, 2; add.s32 %r61, %r60, %r1;
    """


def _wait(parity: int | str = 0, label: str = "W", verb: str = "try_wait") -> str:
    return (
        f"{label}: mbarrier.{verb}.parity.shared::cta.b64 %p2, [%r60], {parity}; @!%p2 bra {label};"
    )


def _run(body: str, threads: int = 64, **more: Any) -> Outcome:
    return run(
        body, np.zeros(threads, np.uint32), chip="sm_90a", threads=threads, shared=512, **more
    )


@MODES
@pytest.mark.parametrize("verb", ["try_wait", "test_wait"])
def test_what_was_written_before_the_arrival_is_seen_after_the_wait(mode: Mode, verb: str) -> None:
    body = (
        _start(64) + "st.shared.u32 [%r61+8], %t; mbarrier.arrive.shared.b64 %d9, [%r60];"
        + _wait(verb=verb) + "xor.b32 %r2, %r1, 128; add.s32 %r3, %r60, %r2;"
        "ld.shared.u32 %r4, [%r3+8]; st.global.u32 [%d2], %r4;"
    )  # fmt: skip
    outcome = _run(body, mode=mode)
    assert outcome.findings == []
    assert outcome.arrays[0].tolist() == [t ^ 32 for t in range(64)]


def test_without_the_wait_it_is_a_race() -> None:
    body = (
        _start(64) + "st.shared.u32 [%r61+8], %t; mbarrier.arrive.shared.b64 %d9, [%r60];"
        "xor.b32 %r2, %r1, 128; add.s32 %r3, %r60, %r2; ld.shared.u32 %r4, [%r3+8];"
    )
    assert _run(body).kinds == {Kind.RACE}


def test_an_arrival_that_is_relaxed_orders_nothing() -> None:
    body = (
        _start(64) + "st.shared.u32 [%r61+8], %t;"
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 %d9, [%r60];" + _wait()
        + "xor.b32 %r2, %r1, 128; add.s32 %r3, %r60, %r2; ld.shared.u32 %r4, [%r3+8];"
    )  # fmt: skip
    assert _run(body).kinds == {Kind.RACE}


def test_phases_alternate() -> None:
    rounds = "".join(
        f"mbarrier.arrive.shared.b64 _, [%r60]; {_wait(i % 2, f'W{i}')}" for i in range(5)
    )
    outcome = _run(_start(64) + rounds + "mov.u32 %r9, 1; st.global.u32 [%d2], %r9;")
    assert outcome.findings == []
    assert outcome.arrays[0].all()


def test_the_phase_before_the_first_is_over() -> None:
    assert _run(_start(1) + _wait(1)).findings == []


def test_a_state_names_its_phase() -> None:
    body = (
        _start(64) + "mbarrier.arrive.shared.b64 %d9, [%r60];"
        "W: mbarrier.try_wait.shared.b64 %p2, [%r60], %d9; @!%p2 bra W;"
        "mbarrier.pending_count.b64 %r9, %d9; st.global.u32 [%d2], %r9;"
    )
    outcome = _run(body)
    assert outcome.findings == []
    assert sorted(outcome.arrays[0].tolist()) == list(range(1, 65))


def test_counts_and_bytes_are_waited_for_together() -> None:
    body = (
        _start(3)
        + """
    @%p1 mbarrier.arrive.shared.b64 _, [%r60], 2;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r60], 96;
    mbarrier.test_wait.parity.shared.b64 %p3, [%r60], 0; selp.b32 %r5, 1, 0, %p3;
    bar.sync 0;
    @%p1 mbarrier.complete_tx.shared.b64 [%r60], 96;
    bar.sync 0;
    mbarrier.test_wait.parity.shared.b64 %p4, [%r60], 0; selp.b32 %r6, 2, 0, %p4;
    add.s32 %r7, %r5, %r6; st.global.u32 [%d2], %r7;
    """
    )
    outcome = _run(body)
    assert outcome.findings == []
    assert set(outcome.arrays[0].tolist()) == {2}


def test_who_drops_out_is_not_expected_again() -> None:
    body = (
        _start(64)
        + f"""
    setp.lt.u32 %p5, %t, 32; @!%p5 bra STAY;
    mbarrier.arrive_drop.shared.b64 _, [%r60]; bra BOTH;
    STAY: mbarrier.arrive.shared.b64 _, [%r60];
    BOTH: {_wait()}
    @%p5 bra END;
    mbarrier.arrive.shared.b64 _, [%r60]; {_wait(1, "X")}
    END: mov.u32 %r9, 1; st.global.u32 [%d2], %r9;
    """
    )
    outcome = _run(body)
    assert outcome.findings == []
    assert outcome.arrays[0].all()


def test_waiting_for_who_never_arrives_is_a_deadlock() -> None:
    outcome = _run(_start(65) + "mbarrier.arrive.shared.b64 _, [%r60];" + _wait())
    assert outcome.kinds == {Kind.DEADLOCK}
    assert "mbarrier at byte 0" in outcome.findings[0].message


def test_looking_for_who_never_arrives_is_an_endless_loop() -> None:
    outcome = _run(_start(65) + _wait(verb="test_wait"))
    assert outcome.kinds == {Kind.ENDLESS}


def test_who_only_tries_goes_on() -> None:
    body = (
        _start(64)
        + f"""
    mbarrier.try_wait.parity.shared.b64 %p2, [%r60], 0, 1000;
    selp.b32 %r9, 1, 0, %p2; st.global.u32 [%d2], %r9;
    mbarrier.arrive.shared.b64 _, [%r60]; {_wait()}
    """
    )
    outcome = _run(body)
    assert outcome.findings == []
    assert not outcome.arrays[0].any()


_PIPELINE = """
    mov.u32 %r60, s; setp.eq.u32 %p1, %t, 0;
    @%p1 mbarrier.init.shared.b64 [%r60], 32;
    @%p1 mbarrier.init.shared.b64 [%r60+8], 32;
    bar.sync 0;
    and.b32 %r30, %t, 31; shl.b32 %r1, %r30, 2; add.s32 %r61, %r60, %r1;
    mul.wide.u32 %d1, %r1, 1; add.s64 %d2, %a0, %d1;
    setp.lt.u32 %p5, %t, 32; mov.u32 %r10, 0; mov.u32 %r11, 1; mov.u32 %r12, 0;
    @!%p5 bra CONSUMER;
    PRODUCER: mbarrier.try_wait.parity.shared.b64 %p2, [%r60+8], %r11; @!%p2 bra PRODUCER;
    mul.lo.s32 %r13, %r10, 100; add.s32 %r13, %r13, %r30; st.shared.u32 [%r61+16], %r13;
    mbarrier.arrive.shared.b64 _, [%r60];
    xor.b32 %r11, %r11, 1; add.s32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 6; @%p3 bra PRODUCER;
    bra END;
    CONSUMER: mov.u32 %r11, 0;
    TAKE: mbarrier.try_wait.parity.shared.b64 %p2, [%r60], %r11; @!%p2 bra TAKE;
    ld.shared.u32 %r14, [%r61+16]; add.s32 %r12, %r12, %r14;
    {release}
    xor.b32 %r11, %r11, 1; add.s32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 6; @%p3 bra TAKE;
    st.global.u32 [%d2], %r12;
    END:
"""


@MODES
def test_a_producer_and_a_consumer_take_turns(mode: Mode) -> None:
    body = _PIPELINE.replace("{release}", "mbarrier.arrive.shared.b64 _, [%r60+8];")
    outcome = _run(body, mode=mode)
    assert outcome.findings == []
    assert outcome.arrays[0][:32].tolist() == [6 * lane + 1500 for lane in range(32)]


@pytest.mark.parametrize(("mode", "kinds"), [(Mode.EAGER, set[Kind]()), (Mode.LAZY, {Kind.RACE})])
def test_a_wait_that_does_not_ask_again_shows_in_lazy_mode(mode: Mode, kinds: set[Kind]) -> None:
    body = (
        _start(32)
        + """
    setp.lt.u32 %p5, %t, 32; @!%p5 bra CONSUMER;
    mov.u32 %r9, 7; st.shared.u32 [%r60+16], %r9; mbarrier.arrive.shared.b64 _, [%r60];
    bra END;
    CONSUMER: mbarrier.try_wait.parity.shared.b64 %p2, [%r60], 0;
    ld.shared.u32 %r14, [%r60+16];
    END:
    """
    )
    assert _run(body, mode=mode).kinds == kinds


def test_a_phase_is_told_at_the_second_question_in_lazy_mode() -> None:
    ask = "mbarrier.test_wait.parity.shared.b64 %p{}, [%r60], 0;"
    body = (
        _start(64)
        + f"""
    mbarrier.arrive.shared.b64 _, [%r60]; bar.sync 0;
    {ask.format(2)} {ask.format(3)} {ask.format(4)}
    selp.b32 %r9, 1, 0, %p2; selp.b32 %r10, 2, 0, %p3; selp.b32 %r11, 4, 0, %p4;
    or.b32 %r9, %r9, %r10; or.b32 %r9, %r9, %r11; st.global.u32 [%d2], %r9;
    """
    )
    assert set(_run(body, mode=Mode.EAGER).arrays[0].tolist()) == {7}
    assert set(_run(body, mode=Mode.LAZY).arrays[0].tolist()) == {2}


def test_a_consumer_that_releases_nothing_stops_the_producer() -> None:
    outcome = _run(_PIPELINE.replace("{release}", ""))
    assert outcome.kinds == {Kind.DEADLOCK}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mbarrier.arrive.shared.b64 _, [%r60+64];", "no mbarrier at byte 64"),
        ("@%p1 mbarrier.init.shared.b64 [%r60], 1;", "already"),
        ("@%p1 mbarrier.arrive.shared.b64 _, [%r60], 65;", "65 arrivals where 64"),
        ("@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r60], 0x7fffffff;", "bytes"),
        ("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 _, [%r60], 1;", "noComplete"),
        ("@%p1 mbarrier.inval.shared.b64 [%r60]; bar.sync 0; mbarrier.arrive.shared.b64 _, [%r60];",
         "no mbarrier"),
    ],
)  # fmt: skip
def test_misuse_is_found(body: str, message: str) -> None:
    fill = "mov.u32 %r9, 0; st.shared.u32 [%r61+64], %r9; bar.sync 0;"
    outcome = _run(_start(64) + fill + body)
    assert outcome.kinds == {Kind.UNDEFINED}
    assert message in outcome.findings[0].message


def test_use_before_its_making_is_known_is_a_race() -> None:
    body = _start(64).replace("bar.sync 0;", "") + "mbarrier.arrive.shared.b64 _, [%r60];"
    assert Kind.RACE in _run(body).kinds
