"""Faults that users of other kernel languages met: tuning."""

from __future__ import annotations

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import check, poisoned


def test_choices_are_found_by_name_and_by_types() -> None:  # K104
    @tile.jit
    def body(x, M, N, BLOCK: tile.constexpr):
        # A configuration that only one element type can have.
        tile.static_assert(BLOCK * x.dtype.element_ty.primitive_bitwidth <= 256, "too large")
        tile.store(x + tile.arange(0, BLOCK), M + N)

    timed: list[int] = []

    def bench(launch, quantiles):
        launch()
        timed.append(1)
        return 1.0

    configs = [tile.Config({"BLOCK": n}) for n in (16, 8, 4)]
    kernel = tile.autotune(configs, key=["M", "N"], do_bench=bench)(body)
    half, single = np.zeros(16, np.float16), np.zeros(16, np.float32)
    tunings: list[int] = []
    for array, arguments, keywords in (
        (half, (1, 2), {}),
        (half, (), {"N": 2, "M": 1}),
        (half, (2, 1), {}),
        (single, (1, 2), {}),
    ):
        kernel[1,](array, *arguments, **keywords)
        tunings.append(len(kernel.cache))
    assert tunings == [1, 1, 2, 3]
    assert len(timed) == 3 + 3 + 2
    assert half.tolist() == [3] * 16
    assert single.tolist() == [3] * 8 + [0] * 8


def test_every_call_begins_from_a_clean_output(place: str) -> None:  # K106
    @tile.autotune([tile.Config({"HALF": h}) for h in (0, 1)], warmup=0, rep=0)
    @tile.jit
    def write_half(out, HALF: tile.constexpr, N: tile.constexpr):
        tile.store(out + HALF * N + tile.arange(0, N), 1)

    out = np.zeros(32, np.int32)
    for _ in range(2):
        out[:] = 0
        write_half[1,](out, N=16)
        assert write_half.best_config is not None
        half = write_half.best_config.kwargs["HALF"]
        expected = np.repeat([1 - half, half], 16).astype(np.int32)
        check(out, expected, f"half {half}")

    @tile.autotune(
        [tile.Config({}, num_warps=w) for w in (1, 2)], reset_to_zero=["x"], warmup=0, rep=0
    )
    @tile.jit
    def increment(x, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(x + i, tile.load(x + i) + 1)

    x = np.full(16, 7, np.int32)
    for _ in range(3):
        increment[1,](x, N=16)
        check(x, np.ones(16, np.int32), "reset")


@tile.jit
def transpose(x, out, N: tile.constexpr):
    """Needs N * N * 4 bytes of shared memory on a GPU, as a turned tile changes threads."""
    i, j = tile.arange(0, N)[:, None], tile.arange(0, N)[None, :]
    tile.store(out + i * N + j, tile.load(x + i * N + j).trans())


def test_what_does_not_fit_is_left_out_and_if_nothing_fits_the_limits_are_told() -> None:  # K110
    def signature(n: int) -> tuple[dict[str, str], dict[str, int]]:
        return {"x": "*fp32:16", "out": "*fp32:16"}, {"N": n}

    # Exactly the limit of 64 KiB works, beyond it the error has both numbers.
    assert tile.compile(transpose, *signature(128), "gfx942", num_warps=8).resources.shared_bytes
    with pytest.raises(tile.KernelError, match=r"\d+ bytes wanted, 65536 available"):
        tile.compile(transpose, *signature(256), "gfx942", num_warps=16)


def test_an_oversized_configuration_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:  # K110
    x = np.arange(128 * 128, dtype=np.float32)
    small, large = tile.Config({"N": 64}, num_warps=4), tile.Config({"N": 256}, num_warps=16)
    with tile.device("emulate:gfx942"):
        kernel = tile.autotune([large, small])(transpose)
        out = poisoned(64 * 64, tile.float32)
        kernel[1,](x, out)
        assert kernel.best_config is small
        check(out, x[: 64 * 64].reshape(64, 64).T.ravel().copy(), "transposed")
        kernel = tile.autotune([large, tile.Config({"N": 256}, num_warps=8)])(transpose)
        with pytest.raises(tile.KernelError) as raised:
            kernel[1,](np.zeros(256 * 256, np.float32), np.zeros(256 * 256, np.float32))
    assert "65536 available" in str(raised.value)


@pytest.mark.gpu
def test_a_capture_works_cold_and_warm() -> None:  # K107
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    configs = [tile.Config({"BLOCK": b}, num_warps=4) for b in (128, 256)]

    @tile.jit
    def body(x, out, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        tile.store(out + i, tile.load(x + i, mask=i < n) * 2, mask=i < n)

    def grid(arguments):
        return (tile.cdiv(arguments["n"], arguments["BLOCK"]),)

    x, out = torch.arange(1000.0, device="cuda"), torch.zeros(1000, device="cuda")
    for warm in (False, True):
        kernel = tile.autotune(configs, key=["n"])(body)
        if warm:
            kernel[grid](x, out, 1000)
        graph = torch.cuda.CUDAGraph()
        if warm:
            with torch.cuda.graph(graph):
                kernel[grid](x, out, 1000)
        else:
            with pytest.warns(UserWarning, match="captured before"), torch.cuda.graph(graph):
                kernel[grid](x, out, 1000)
        for factor in (1.0, 3.0, 5.0):
            x.copy_(torch.arange(1000.0) * factor)
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out.cpu(), torch.arange(1000.0) * factor * 2)
        x.copy_(torch.arange(1000.0))
