"""Waits for copies to tensors: where something depends on them, no earlier and for no more."""

from __future__ import annotations

from tiledsl.transforms.wait_for_stores import wait_for_stores

from .box_store_programs import (
    LOAD,
    LOAD_ELSEWHERE,
    RELEASE,
    alloc,
    fill,
    loop,
    run,
    send,
)


def waits(text: str) -> list[str]:
    return run(text, wait_for_stores)


def test_shared_memory_is_read_before_the_kernel_ends() -> None:
    assert waits(alloc("a") + fill("a") + send("a")) == ["fill", "send", "wait 0 read"]


def test_a_buffer_is_read_before_it_is_filled_again() -> None:
    text = alloc("a", 0) + fill("a") + send("a", "%i", "%c") + fill("a") + send("a", "%i", "%d")
    assert waits(text) == ["fill", "send", "wait 0 read", "fill", "send", "wait 0 read"]


def test_buffers_that_share_bytes_are_one() -> None:
    text = alloc("a", 0) + alloc("b", 8192) + fill("a") + send("a") + fill("b")
    assert waits(text) == ["fill", "send", "wait 0 read", "fill"]
    apart = text.replace("8192", "16384")
    assert waits(apart) == ["fill", "send", "fill", "wait 0 read"]


def test_later_copies_go_on_while_a_ring_waits_for_its_oldest() -> None:
    pieces = [
        (fill(buffer) + send(buffer, column=64 * number, width=256))
        for number, buffer in enumerate("abab")
    ]
    assert waits(alloc("a", 0) + alloc("b", 16384) + "".join(pieces)) == [
        "fill", "send", "fill", "send", "wait 1 read", "fill", "send", "wait 1 read", "fill",
        "send", "wait 0 read",
    ]  # fmt: skip


def test_a_load_through_the_same_argument_waits_until_all_is_there() -> None:
    text = alloc("a") + fill("a") + send("a")
    assert waits(text + LOAD) == ["fill", "send", "wait 0", "load"]
    assert waits(text + LOAD_ELSEWHERE) == ["fill", "send", "load", "wait 0 read"]


def test_releases_and_the_author_s_barriers_come_after_copies() -> None:
    text = alloc("a") + fill("a") + send("a")
    assert waits(text + RELEASE) == ["fill", "send", "wait 0", "atomic"]
    assert waits(text + '"tile.barrier"() : () -> ()') == ["fill", "send", "wait 0"]


def test_copies_to_one_tensor_keep_their_order_unless_they_are_apart() -> None:
    buffers = alloc("a", 0) + alloc("b", 16384) + fill("a") + fill("b")
    both = ["fill", "fill", "send", "send", "wait 0 read"]
    apart = "%j = arith.addi %i, %size : i32\n"
    near = "%near = arith.constant 64 : i32\n %j = arith.addi %i, %near : i32\n"
    assert waits(buffers + apart + send("a") + send("b", "%j")) == both
    assert waits(buffers + send("a") + send("b", base="%d")) == both
    assert waits(buffers + send("a", width=128) + send("b", column=64, width=128)) == both
    waiting = ["fill", "fill", "send", "wait 0", "send", "wait 0 read"]
    assert waits(buffers + near + send("a") + send("b", "%j")) == waiting
    assert waits(buffers + send("a") + send("b", "%n")) == waiting


def test_a_loop_waits_for_the_trip_before_as_late_as_it_can() -> None:
    body = "%j = arith.muli %k, %size : i32\n" + "".join(
        fill(buffer) + send(buffer, "%j", column=64 * number, width=256)
        for number, buffer in enumerate("abab")
    )
    text = alloc("a", 0) + alloc("b", 16384) + loop(body)
    piece = ["wait 1 read", "fill", "wait 3", "send"]
    assert waits(text) == ["loop", *piece * 4, "wait 0 read"]


def test_boxes_that_may_overlap_wait_for_all_of_the_trip_before() -> None:
    body = "".join(fill(buffer) + send(buffer, "%k") for buffer in "ab")
    assert waits(alloc("a", 0) + alloc("b", 16384) + loop(body)) == [
        "loop", "fill", "wait 0", "send", "fill", "wait 0", "send", "wait 0 read",
    ]  # fmt: skip


def test_what_only_a_loop_s_first_trip_waits_for_is_waited_for_before_it() -> None:
    text = alloc("a", 0) + fill("a") + send("a") + loop(LOAD)
    assert waits(text) == ["fill", "send", "wait 0", "loop", "load"]
    text = alloc("a", 0) + fill("a") + send("a", base="%d") + loop(fill("a") + LOAD)
    assert waits(text) == ["fill", "send", "wait 0 read", "loop", "fill", "load"]


def test_a_branch_that_may_copy_is_waited_for() -> None:
    condition = "%b = arith.cmpi eq, %m, %n : i32\n"
    text = alloc("a", 0) + condition + f"scf.if %b {{ {fill('a') + send('a')} }}\n" + fill("a")
    assert waits(text) == ["fill", "send", "wait 0 read", "fill"]
