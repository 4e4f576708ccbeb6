"""Layouts: random kernels mean the same afterwards and keep the lowering's rules; golden tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.transforms.assign_layouts import assign_layouts
from tiledsl.transforms.share_conversions import share_conversions

from . import random_kernels
from .layout_oracle import fault
from .tile_kernels import attention, matmul, softmax, vector_add
from .tile_values import execute


def assign(module: ir.Module, num_warps: int = 4, warp_size: int = 32) -> None:
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=num_warps, warp_size=warp_size)
    contracts.check(module, contracts.TGPU)
    assert fault(module) is None


def share(module: ir.Module) -> None:
    with module.context, ir.Location.unknown():
        share_conversions(module)
    contracts.check(module, contracts.TGPU)
    assert fault(module, shared=True) is None


def count(module: ir.Module, name: str) -> int:
    return str(module).count(f'"{name}"(')


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_kernels.modules(), st.sampled_from([(1, 32), (4, 32), (8, 32), (2, 64)]))
def test_a_random_kernel_means_the_same_with_layouts(module: ir.Module, threads: tuple[int, int]):
    arrays = np.arange(random_kernels.ELEMENTS, dtype=np.int32) * 7 % 31, np.zeros(8192, np.int32)
    wanted = execute(module, [*arrays, 3])[1]
    assign(module, *threads)
    np.testing.assert_array_equal(execute(module, [*arrays, 3])[1], wanted)
    share(module)
    np.testing.assert_array_equal(execute(module, [*arrays, 3])[1], wanted)
