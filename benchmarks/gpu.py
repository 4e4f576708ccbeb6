"""Our kernels beside torch's and Triton's, in one run on one GPU.

    python benchmarks/gpu.py [--json FILE] [--only NAME]

Times are medians of device events over fresh launches (`triton.testing.do_bench`), inputs are
random normal, results are checked before they are timed. A copy's bandwidth is measured in the same
run and is the yardstick of what moves memory; cuBLAS (through torch) that of products. The host's
share of a warm launch is timed by queueing launches faster than the device can be asked for them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
import triton.testing

import tiledsl as tile

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    """Import an example by its file's name."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


add = example("ex01_vector_add").add
softmax_row = example("ex02_softmax").softmax_row
matmul = example("ex04_matmul").matmul
attention_forward = example("ex05_attention").attention_forward


@triton.jit
def triton_add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask) + tl.load(y + offsets, mask), mask)


@triton.jit
def triton_softmax(x, out, row_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    values = tl.load(x + row * row_stride + column, mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(values - tl.max(values, axis=0))
    result = e / tl.sum(e, axis=0)
    tl.store(out + row * row_stride + column, result.to(out.dtype.element_ty), mask)


@triton.jit
def triton_matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        x = tl.load(
            a + m[:, None] * stride_am + (k0 + k)[None, :] * stride_ak,
            mask=(m[:, None] < M) & ((k0 + k)[None, :] < K),
        )
        y = tl.load(
            b + (k0 + k)[:, None] * stride_bk + n[None, :] * stride_bn,
            mask=((k0 + k)[:, None] < K) & (n[None, :] < N),
        )
        acc = tl.dot(x, y, acc)
    tl.store(
        c + m[:, None] * stride_cm + n[None, :] * stride_cn,
        acc.to(c.dtype.element_ty),
        mask=(m[:, None] < M) & (n[None, :] < N),
    )


def ms(run: Callable[[], object]) -> float:
    """Return the median device time of `run`, in milliseconds."""
    return float(triton.testing.do_bench(run, warmup=50, rep=200, return_mode="median"))


def error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the relative Frobenius error."""
    difference = result.double() - reference.double()
    return float(difference.norm() / reference.double().norm())


def copy_bandwidth(size: int) -> float:
    """Return a device-to-device copy's GB/s, bytes read plus bytes written."""
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / ms(lambda: target.copy_(source)) / 1e6


def bench_vector_add() -> list[dict[str, Any]]:
    """Time f32 vector addition."""
    n = 1 << 26
    x, y, out = torch.randn(3, n, device="cuda")
    rows: list[dict[str, Any]] = []
    block = 1024
    copy = copy_bandwidth(4 * n)

    def row(name: str, run: Callable[[], object]) -> None:
        rate = 12 * n / ms(run) / 1e6
        rows.append(
            {"what": "vector add f32 2^26", "who": name, "GB/s": rate, "of copy": rate / copy}
        )

    out.fill_(math.nan)
    add[triton.cdiv(n, block),](x, y, out, n, BLOCK=block)
    assert torch.equal(out, x + y)
    row("tiledsl", lambda: add[triton.cdiv(n, block),](x, y, out, n, BLOCK=block))
    row("triton", lambda: triton_add[triton.cdiv(n, block),](x, y, out, n, BLOCK=block))
    row("torch", lambda: torch.add(x, y, out=out))
    return rows


def bench_softmax() -> list[dict[str, Any]]:
    """Time row softmax."""
    rows: list[dict[str, Any]] = []
    for m, n, dtype in (
        (8192, 8192, torch.bfloat16),
        (8192, 4096, torch.float32),
        (16384, 3000, torch.float32),
    ):
        x = torch.randn(m, n, device="cuda").to(dtype)
        out = torch.full_like(x, math.nan)
        block = triton.next_power_of_2(n)
        size = x.numel() * x.element_size()
        copy = copy_bandwidth(size)
        warps = 8 if block >= 2048 else 4

        def ours(
            x: Any = x,
            out: Any = out,
            m: int = m,
            n: int = n,
            block: int = block,
            warps: int = warps,
        ) -> None:
            softmax_row[m,](x, out, n, n, BLOCK=block, num_warps=warps)

        def peer(
            x: Any = x,
            out: Any = out,
            m: int = m,
            n: int = n,
            block: int = block,
            warps: int = warps,
        ) -> None:
            triton_softmax[m,](x, out, n, n, BLOCK=block, num_warps=warps)

        ours()
        found = error(out, torch.softmax(x.double(), 1))
        assert found < (1e-2 if dtype == torch.bfloat16 else 1e-5), found
        for name, run in (
            ("tiledsl", ours),
            ("triton", peer),
            ("torch", lambda x=x: torch.softmax(x, 1)),
        ):
            rate = 2 * size / ms(run) / 1e6
            rows.append(
                {
                    "what": f"softmax {m}x{n} {str(dtype)[6:]}",
                    "who": name,
                    "GB/s": rate,
                    "of copy": rate / copy,
                }
            )
    return rows


def bench_matmul() -> list[dict[str, Any]]:
    """Time f16 products by mma.sync, several block sizes."""
    rows: list[dict[str, Any]] = []
    for size in (1024, 4096, 8192):
        a, b = torch.randn(2, size, size, device="cuda", dtype=torch.float16)
        c = torch.full((size, size), math.nan, device="cuda", dtype=torch.float16)
        flops = 2 * size**3
        reference = a.float() @ b.float()
        strides = (*a.stride(), *b.stride(), *c.stride())

        def row(
            name: str, time_ms: float, base: float, size: int = size, flops: int = flops
        ) -> None:
            rows.append(
                {
                    "what": f"matmul f16 {size}^3",
                    "who": name,
                    "TFLOP/s": flops / time_ms / 1e9,
                    "of cuBLAS": base / time_ms,
                }
            )

        base = ms(lambda a=a, b=b, c=c: torch.mm(a, b, out=c))
        row("cuBLAS", base, base)
        for blocks, warps, stages in (
            ((128, 128, 32), 4, 3),
            ((128, 128, 32), 4, 4),
            ((128, 128, 64), 4, 3),
            ((128, 256, 32), 8, 3),
            ((128, 256, 64), 8, 3),
        ):
            grid = (triton.cdiv(size, blocks[0]), triton.cdiv(size, blocks[1]))
            meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks, strict=True))
            label = f"{'x'.join(map(str, blocks))} w{warps} s{stages}"

            def ours(
                a=a,
                b=b,
                c=c,
                size=size,
                strides=strides,
                grid=grid,
                meta=meta,
                warps=warps,
                stages=stages,
            ) -> None:
                matmul[grid](
                    a,
                    b,
                    c,
                    None,
                    size,
                    size,
                    size,
                    *strides,
                    FUSED=False,
                    **meta,
                    num_warps=warps,
                    num_stages=stages,
                )

            def peer(
                a=a,
                b=b,
                c=c,
                size=size,
                strides=strides,
                grid=grid,
                meta=meta,
                warps=warps,
                stages=stages,
            ) -> None:
                triton_matmul[grid](
                    a, b, c, size, size, size, *strides, **meta, num_warps=warps, num_stages=stages
                )

            for name, run in (("tiledsl", ours), ("triton", peer)):
                try:
                    c.fill_(math.nan)
                    run()
                    found = error(c, reference)
                    assert found < 2e-3, found
                    row(f"{name} {label}", ms(run), base)
                except Exception as problem:
                    words = f"{type(problem).__name__}: {str(problem)[:300]}"
                    print(f"matmul {size} {name} {label}: {words}")
    return rows


def bench_attention() -> list[dict[str, Any]]:
    """Time attention forward in bf16."""
    rows: list[dict[str, Any]] = []
    for batch_heads, length, d, causal in (
        (64, 4096, 64, False),
        (64, 4096, 64, True),
        (32, 4096, 128, False),
        (32, 1000, 128, True),
    ):
        q, k, v = torch.randn(3, batch_heads, length, d, device="cuda", dtype=torch.bfloat16)
        out = torch.full_like(q, math.nan)
        flops = 4 * batch_heads * length * length * d * (0.5 if causal else 1)

        def ours(
            q=q, k=k, v=v, out=out, length=length, d=d, causal=causal, heads=batch_heads
        ) -> None:
            attention_forward[triton.cdiv(length, 128), heads](
                q, k, v, out, heads, heads, length, length * d, length * d, 1 / math.sqrt(d),
                CAUSAL=causal, BLOCK_Q=128, BLOCK_K=128, D=d,
                num_warps=8, num_stages=2, fast_math=True,
            )  # fmt: skip

        def peer(q=q, k=k, v=v, causal=causal) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=causal
            )

        ours()
        found = error(
            out,
            torch.nn.functional.scaled_dot_product_attention(
                q[None].float(), k[None].float(), v[None].float(), is_causal=causal
            )[0],
        )
        assert found < 1e-2, found
        for name, run in (("tiledsl", ours), ("torch SDPA", peer)):
            rows.append(
                {
                    "what": f"attention {batch_heads}x{length}x{d}{' causal' if causal else ''}",
                    "who": name,
                    "TFLOP/s": flops / ms(run) / 1e9,
                    "error": found if name == "tiledsl" else None,
                }
            )
    return rows


def bench_launch() -> list[dict[str, Any]]:
    """Time the host's share of a warm launch, in microseconds."""
    x, y, out = torch.randn(3, 1024, device="cuda")
    size = 128
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.float16)
    c = torch.empty_like(a)
    strides = (*a.stride(), *b.stride(), *c.stride())
    meta = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}
    runs: dict[str, Callable[[], object]] = {
        "tiledsl add (5 arguments)": lambda: add[1,](x, y, out, 1024, BLOCK=1024),
        "triton add (5 arguments)": lambda: triton_add[1,](x, y, out, 1024, BLOCK=1024),
        "tiledsl matmul (16 arguments)": lambda: matmul[1, 1](
            a, b, c, None, size, size, size, *strides, FUSED=False, **meta
        ),
        "triton matmul (15 arguments)": lambda: triton_matmul[1, 1](
            a, b, c, size, size, size, *strides, **meta
        ),
    }
    rows: list[dict[str, Any]] = []
    for name, run in runs.items():
        for _ in range(50):
            run()
        torch.cuda.synchronize()
        samples: list[float] = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(50):
                run()
            samples.append((time.perf_counter() - start) / 50 * 1e6)
            torch.cuda.synchronize()
        rows.append({"what": "launch", "who": name, "us": sorted(samples)[len(samples) // 2]})
    return rows


def bench_compile() -> list[dict[str, Any]]:
    """Time the compilation of the matmul for sm_90a, cold but in this process, by step."""
    import os

    os.environ["TILEDSL_CACHE"] = "0"
    signature = dict.fromkeys("abc", "*fp16:16") | dict.fromkeys(
        ("M", "N", "K", "stride_am", "stride_bk", "stride_cm"), "i32:16"
    )
    signature |= dict.fromkeys(("stride_ak", "stride_bn", "stride_cn"), "1")
    compiled = tile.compile(
        matmul,
        signature,
        {"bias": None, "FUSED": False, "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32},
        "sm_90a",
    )
    return [
        {"what": "compile matmul sm_90a", "who": name, "ms": seconds * 1e3}
        for name, seconds in compiled.seconds
    ]


BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "add": bench_vector_add,
    "softmax": bench_softmax,
    "matmul": bench_matmul,
    "attention": bench_attention,
    "launch": bench_launch,
    "compile": bench_compile,
}


def main() -> None:
    """Run the benchmarks and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.only:
        try:
            found = BENCHMARKS[name]()
        except Exception as problem:
            print(f"{name}: {type(problem).__name__}: {str(problem)[:2000]}")
            continue
        rows += found
        for row in found:
            figures = "  ".join(
                f"{k} {v:.3g}" if isinstance(v, float) else "" for k, v in row.items()
            )
            print(f"{row['what']:32} {row['who']:36} {figures.strip()}", flush=True)
    if options.json:
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
