"""Tuning: which configuration is taken, when it is looked for again, and what tuning leaves behind."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownLambdaType=false

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tiledsl.autotune import Autotuner
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.host.driver import HostDriver


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEDSL_CACHE", raising=False)


@tile.jit
def fill(out, n, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(out + i, BLOCK, mask=i < n)


def blocks(*sizes: int) -> list[tile.Config]:
    return [tile.Config({"BLOCK": size}) for size in sizes]


class Bench:
    """Stands for a clock: a launch takes as long as the block it wrote, in the order told."""

    def __init__(self, out: Any, fastest: int) -> None:
        self.out = out
        self.fastest = fastest
        self.seen: list[int] = []

    def __call__(self, launch: Callable[[], None], quantiles: Any) -> list[float]:
        launch()
        self.seen.append(int(self.out[0]))
        return [0.5 if self.out[0] == self.fastest else 1.0, 0.0, 2.0]


def tuned(out: Any, fastest: int = 4, sizes: Any = (2, 4, 8), **options: Any) -> Any:
    """Return `fill` tuned, and the clock."""
    bench = Bench(out, fastest)
    return tile.autotune(blocks(*sizes), do_bench=bench, **options)(fill), bench


def test_the_fastest_is_taken_and_remembered() -> None:
    out = np.zeros(8, np.int32)
    kernel, bench = tuned(out)
    compiled = kernel[1](out, 8)
    assert out.tolist() == [4] * 4 + [0] * 4
    assert bench.seen == [2, 4, 8]
    assert repr(kernel.best_config) == "BLOCK=4, num_warps=4, num_stages=3"
    assert sorted(kernel.configs_timings.values()) == [0.5, 1.0, 1.0]
    assert compiled.request.constexprs == {"BLOCK": 4}
    kernel[1](out, 8)
    assert bench.seen == [2, 4, 8]


def test_the_wall_clock_decides_on_the_host() -> None:
    @tile.autotune([tile.Config({"ROUNDS": n}) for n in (200_000, 1)], warmup=1, rep=5)
    @tile.jit
    def kernel(x, ROUNDS: tile.constexpr):
        value = tile.load(x)
        for _ in range(tile.load(x + 1) * ROUNDS):
            value = value * 5 + 1
        tile.store(x, value)

    x = np.array([1, 1], np.int32)
    kernel[1](x)
    assert kernel.best_config is not None
    assert kernel.best_config.kwargs == {"ROUNDS": 1}
    assert x[0] == 6  # one launch of the chosen one: tuning left nothing
    assert kernel.bench_time > 0


def test_one_configuration_is_not_timed() -> None:
    out = np.zeros(8, np.int32)
    kernel, bench = tuned(out, sizes=(8,))
    kernel[1](out, 8)
    assert out.tolist() == [8] * 8
    assert bench.seen == []
    kernel, bench = tuned(out, sizes=())
    with pytest.raises(KernelError, match="constexpr argument `BLOCK` is missing"):
        kernel[1](out, 8)


def test_the_grid_sees_the_configuration_and_its_options() -> None:
    out, seen = np.zeros(8, np.int32), list[tuple[int, int]]()
    kernel, _ = tuned(out, sizes=(2, 4))

    def grid(arguments: Any) -> int:
        seen.append((arguments["BLOCK"], arguments["num_warps"]))
        return 1

    kernel[grid](out, 8)
    assert set(seen) == {(2, 4), (4, 4)}


def test_an_empty_grid_tunes_nothing() -> None:
    out = np.zeros(8, np.int32)
    kernel, bench = tuned(out)
    assert kernel[0](out, 8) is None
    assert bench.seen == []
    kernel[1](out, 8)
    assert bench.seen == [2, 4, 8]


def test_each_kind_of_call_is_tuned_for() -> None:
    out = np.zeros(8, np.int32)
    kernel, bench = tuned(out, key=["n"])
    counts: list[int] = []
    for array, n in ((out, 8), (out, 8), (out, 7), (out.astype(np.int64), 8), (out, np.int64(8))):
        kernel[1](array, n)
        counts.append(len(bench.seen) // 3)
    assert counts == [1, 1, 2, 3, 4]
    assert len(kernel.cache) == 4


def test_configurations_that_cannot_be_are_left_out() -> None:
    out = np.zeros(8, np.int32)
    kernel, bench = tuned(out, sizes=(3, 8, 5))  # no powers of two
    kernel[1](out, 8)
    assert bench.seen == []  # one is left
    assert out.tolist() == [8] * 8


def test_if_none_is_left_each_reason_is_told() -> None:
    out = np.zeros(8, np.int32)
    kernel, _ = tuned(out, sizes=(3, 5))
    with pytest.raises(KernelError) as raised:
        kernel[1](out, 8)
    assert str(raised.value).startswith(
        "kernel `fill`: expected a configuration that fits, found none of 2\n"
        "  BLOCK=3, num_warps=4, num_stages=3: expected tile sizes that are powers of two, "
        "found (3,)\n"
        "  BLOCK=5, num_warps=4, num_stages=3: expected tile sizes that are powers of two, "
        "found (5,)\n"
        "    --> "
    )
    with pytest.raises(KernelError, match=r"^kernel `fill`: argument `out`: expected an array"):
        kernel[1]([0], 8)  # no matter of configurations


def test_a_launch_without_resources_is_left_out_and_other_faults_are_not() -> None:
    out = np.zeros(8, np.int32)

    def bench(launch: Callable[[], None], quantiles: Any) -> float:
        launch()
        if out[0] == message[0]:
            raise KernelError(message[1])
        return 1.0

    kernel = tile.autotune(blocks(2, 4), do_bench=bench)(fill)
    message = (2, "cuLaunchKernelEx failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (words)")
    kernel[1](out, 8)
    assert out.tolist() == [4] * 4 + [0] * 4
    kernel.cache.clear()
    message = (4, "cuLaunchKernelEx failed: CUDA_ERROR_ILLEGAL_ADDRESS (words)")
    with pytest.raises(KernelError, match="ILLEGAL_ADDRESS"):
        kernel[1](out, 8)


def test_configurations_are_pruned() -> None:
    out, asked = np.zeros(8, np.int32), list[Any]()

    def early(configs: Any, named: Any, **kwargs: Any) -> Any:
        asked.append((len(configs), named["n"], kwargs))
        return [config for config in configs if config.kwargs["BLOCK"] != 2]

    def model(BLOCK: int, n: int, num_warps: int, **_: Any) -> float:
        return -BLOCK * num_warps

    rules = {"early_config_prune": early, "perf_model": model, "top_k": 2}
    kernel, bench = tuned(out, sizes=(2, 4, 8, 16), prune_configs_by=rules)
    kernel[1](out, n=8)
    assert asked == [(4, 8, {"n": 8})]
    assert sorted(bench.seen) == [8, 16]
    kernel, bench = tuned(out, sizes=(2, 4, 8, 16), prune_configs_by={**rules, "top_k": 0.25})
    kernel[1](out, n=8)
    assert out[0] == 16
    kernel, _ = tuned(out, prune_configs_by={"early_config_prune": lambda *_, **__: []})
    with pytest.raises(KernelError, match="expected a configuration to be left by early_config_pr"):
        kernel[1](out, 8)


@tile.jit
def add_one(x, y, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(x + i, tile.load(x + i) + 1)
    tile.store(y + i, tile.load(y + i) + 1)


def test_hooks_work_before_every_launch() -> None:
    x, y = np.full(8, 5, np.int32), np.full(8, 5, np.int32)
    kernel = tile.autotune(blocks(4, 8), reset_to_zero=["x"], warmup=0.1, rep=0.5)(add_one)
    for i in range(3):
        kernel[1](x, y)
        assert kernel.best_config is not None
        block = kernel.best_config.kwargs["BLOCK"]
        assert x.tolist() == [1] * block + [0] * (8 - block)
        assert y.tolist() == [6 + i] * block + [5] * (8 - block)


def test_values_are_restored_before_every_timed_launch() -> None:
    x, y = np.full(8, 5, np.int32), np.full(8, 7, np.int32)
    seen: list[tuple[int, int]] = []

    def bench(launch: Callable[[], None], quantiles: Any) -> float:
        for _ in range(3):
            launch()
            seen.append((int(x[0]), int(y[0])))
        return 1.0

    kernel = tile.autotune(blocks(4, 8), restore_value=["x"], do_bench=bench)(add_one)
    kernel[1](x, y)
    assert seen == [(6, 8), (6, 9), (6, 10)] * 2
    assert (x[0], y[0]) == (6, 8)


def test_the_callers_own_hooks_are_called_as_tritons_are() -> None:
    calls: list[Any] = []
    configs = [
        tile.Config({"BLOCK": 4}, pre_hook=lambda named: calls.append(named["BLOCK"])),
        tile.Config({"BLOCK": 8}),
    ]
    kernel = tile.autotune(
        configs,
        reset_to_zero=["x"],
        pre_hook=lambda named, reset_only: calls.append(reset_only),
        post_hook=lambda named, exception: calls.append(exception),
        do_bench=lambda launch, quantiles: [launch(), 1.0][1],
    )(add_one)
    x = np.full(8, 5, np.int32)
    kernel[1](x, x.copy())
    # To prepare; to time each; to launch. In place of the reset stands the caller's hook.
    assert calls == [4, 4, False, None, False, None, 4, True]
    assert x[0] == 6


def test_arrays_in_tuples_are_named_by_their_way() -> None:
    @tile.jit
    def kernel(pair, BLOCK: tile.constexpr):
        tile.store(pair[0], tile.load(pair[0]) + 1)
        tile.store(pair[1], tile.load(pair[1]) + 1)

    x, y = np.full(1, 5, np.int32), np.full(1, 5, np.int32)
    for name, expected in (("pair.1", (6, 1)), ("pair", (1, 1))):
        reset = tile.autotune(blocks(1, 2), reset_to_zero=[name], warmup=0, rep=0)(kernel)
        x[0] = y[0] = 5
        reset[1]((x, y))
        assert (x[0], y[0]) == expected
    with pytest.raises(KernelError, match="tuning: expected an array as `n`, found int"):
        tile.autotune(blocks(2), reset_to_zero=["n"])(fill)[1](x, 3)


def test_under_a_capture_the_first_is_taken_with_a_warning_and_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = np.zeros(8, np.int32)
    kernel, bench = tuned(out, fastest=8)
    with monkeypatch.context() as captured:
        captured.setattr(HostDriver, "is_capturing", lambda *_: True)
        with pytest.warns(UserWarning, match=r"its first configuration is taken \(BLOCK=2, "):
            kernel[1](out, 8)
    assert out[0] == 2
    assert bench.seen == []
    kernel[1](out, 8)
    assert out[0] == 8


def test_choices_are_kept_on_disk_when_asked() -> None:
    out = np.zeros(8, np.int32)
    for timed in ([2, 4, 8], []):
        kernel, bench = tuned(out, cache_results=True)
        kernel[1](out, 8)
        assert bench.seen == timed
        assert out[0] == 4
    kernel, bench = tuned(out, cache_results=True, sizes=(2, 4))
    kernel[1](out, 8)
    assert bench.seen == [2, 4]


def test_threads_tune_once() -> None:
    out = np.zeros(8, np.int32)
    kernel, bench = tuned(out)
    threads = [threading.Thread(target=lambda: kernel[1](out, 8)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.seen == [2, 4, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": ["m"]}, "tile.autotune: kernel `fill` has no parameter `m`\n  hint: parameters: out, n, BLOCK"),
        ({"reset_to_zero": ["o"]}, "tile.autotune: kernel `fill` has no parameter `o`\n  hint: parameters: out, n, BLOCK"),
        ({"use_cuda_graph": True}, "tile.autotune: expected use_cuda_graph to be False: events time launches"),
        (
            {"prune_configs_by": {"top": 3}},
            "tile.autotune: expected prune_configs_by to hold early_config_prune, perf_model, top_k, found top",
        ),
        (
            {"configs": [tile.Config({}, warps=3)]},
            "tile.autotune: expected options among num_warps, num_stages, num_ctas, fp_contract, "
            "fast_math, ptxas_options, max_registers, debug, found warps",
        ),
    ],
)  # fmt: skip
def test_a_wrong_use_says_what_is_wrong(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"configs": blocks(2), **options}
    with pytest.raises(KernelError) as raised:
        tile.autotune(**given)(fill)
    assert str(raised.value) == message


def test_what_configurations_decide_is_not_given() -> None:
    kernel = tile.autotune(blocks(2, 4))(fill)
    for given in ({"BLOCK": 8}, {"num_warps": 4}):
        with pytest.raises(KernelError, match=r"is decided by tile.autotune, found it given"):
            kernel[1](np.zeros(8, np.int32), 8, **given)


def test_a_known_choice_is_prepared_without_a_launch() -> None:
    out = np.zeros(8, np.int32)
    kernel, _ = tuned(out)
    with pytest.raises(KernelError, match="expected it to be tuned by a launch before"):
        kernel.prepare((out, 8), {})
    kernel[1](out, 8)
    assert kernel.prepare((out, 8), {}).values["BLOCK"] == 4


@tile.autotune(blocks(2, 4))
@tile.jit
def known(out, n, BLOCK: tile.constexpr):
    tile.store(out, BLOCK)


def test_it_is_shown_and_pickled_by_name() -> None:
    assert repr(tile.autotune(blocks(2, 4))(fill)) == (
        "<tile.autotune of <tile.jit kernel fill>, 2 configurations>"
    )
    assert isinstance(known, Autotuner)
    assert pickle.loads(pickle.dumps(known)) is known
    with pytest.raises(KernelError, match="in order to pickle it"):
        pickle.dumps(tile.autotune(blocks(2))(known.fn))
