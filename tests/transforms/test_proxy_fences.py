"""Barriers and fences around copies to tensors, and around what threads do besides."""

from __future__ import annotations

from tiledsl.transforms.insert_barriers import insert_barriers
from tiledsl.transforms.wait_for_stores import wait_for_stores

from .box_store_programs import LOAD, alloc, fill, loop, run, send

STORE = '"tile.store"(%p, %y) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<128x64x!tile.ptr<f16>, @y>, tensor<128x64xf16, @y>) -> ()\n'


def ordered(text: str) -> list[str]:
    return run(text, wait_for_stores, insert_barriers)


def test_the_threads_of_a_warpgroup_fence_and_meet_before_their_copy() -> None:
    text = alloc("a", 0) + fill("a")
    found = ["fill", "barrier warpgroup fenced", "send", "wait 0 read"]
    assert ordered(text + send("a")) == found
    found[1] = "barrier shared fenced"
    assert ordered(text + send("a", groups="")) == found


def test_they_meet_again_after_the_wait_before_they_write_the_buffer() -> None:
    text = alloc("a", 0) + (fill("a") + send("a", base="%c")) + fill("a") + send("a", base="%d")
    piece = ["fill", "barrier warpgroup fenced", "send", "wait 0 read"]
    assert ordered(text) == [*piece, "barrier warpgroup", *piece]


def test_other_buffers_with_the_same_bytes_take_a_barrier_of_all() -> None:
    text = alloc("a", 0) + alloc("b", 0) + fill("a") + send("a") + fill("b")
    assert ordered(text)[2:] == ["send", "wait 0 read", "barrier shared", "fill"]


def test_a_warpgroup_s_barrier_does_not_order_what_all_share() -> None:
    load = (
        '"tgpu.local_load"(%b) : (!tgpu.shared<tensor<128x64xf16, @s>>) -> tensor<128x64xf16, @y>\n'
    )
    text = alloc("a", 0) + alloc("b", 16384) + fill("b") + fill("a") + send("a") + load
    assert ordered(text)[:5] == [
        "fill", "fill", "barrier warpgroup fenced", "send", "barrier shared",
    ]  # fmt: skip


def test_what_threads_wrote_to_a_tensor_is_fenced_before_a_copy_to_it() -> None:
    text = alloc("a", 0) + STORE + fill("a") + send("a")
    assert ordered(text) == ["store", "fill", "fence all", "barrier all", "send", "wait 0 read"]


def test_threads_meet_after_the_wait_for_what_they_read() -> None:
    text = alloc("a", 0) + fill("a") + send("a") + LOAD
    assert ordered(text)[2:] == ["send", "wait 0", "barrier all", "load"]


def test_copies_by_one_thread_to_one_place_need_no_barrier_but_others_do() -> None:
    text = alloc("a", 0) + alloc("b", 16384) + fill("a") + fill("b")
    alike = ordered(text + send("a", "%t") + send("b", "%t"))
    assert alike == [
        "fill", "fill", "barrier warpgroup fenced", "send", "wait 0", "send", "wait 0 read",
    ]  # fmt: skip
    unlike = ordered(text + send("a", "%t") + send("b", "%i"))
    assert unlike[4:] == ["wait 0", "barrier all", "send", "wait 0 read"]


def test_a_fence_for_what_came_before_a_loop_stands_before_the_loop() -> None:
    text = alloc("a", 0) + fill("a") + loop(send("a", "%k"))
    assert ordered(text) == [
        "fill", "fence shared", "loop", "wait 0", "barrier all", "send", "wait 0 read",
    ]  # fmt: skip


def test_loops_in_which_threads_leave_shared_memory_alone_have_no_fence() -> None:
    barrier = '"tgpu.barrier"() {memory = "shared"} : () -> ()\n'
    text = alloc("a", 0) + fill("a") + loop(barrier + send("a", "%k"))
    assert ordered(text)[:4] == ["fill", "fence shared", "loop", "barrier shared"]
