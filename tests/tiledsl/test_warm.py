"""Calls that repeat earlier ones: found exactly when the compiled kernel is the same."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tiledsl as tile
from tiledsl import arrays, launch, warm
from tiledsl.arrays import read, same_arrays
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr
from tiledsl.parameters import constant_key, parameters_of


class Tensor:
    """What a launch asks a tensor of torch for."""

    def __init__(self, address: int, dtype: str = "float32", device: int = 0) -> None:
        self.dtype = dtype
        self.device = types.SimpleNamespace(type="cuda" if device >= 0 else "cpu")
        self.is_cuda = device >= 0
        self._place = address, device

    def data_ptr(self) -> int:
        return self._place[0]

    def get_device(self) -> int:
        return self._place[1]


Tensor.__module__ = "torch"


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for torch; its dtypes are their names."""
    names: dict[str, Any] = {name: name for name in ("float32", "float16", "int32", "bool")}
    cuda = types.SimpleNamespace(current_stream=None)
    raw = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 100 + index)  # pyright: ignore
    fake: Any = types.SimpleNamespace(
        version=types.SimpleNamespace(hip=None), cuda=cuda, _C=raw, **names
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    for table in (arrays._readers, warm._readers):  # pyright: ignore[reportPrivateUsage]
        monkeypatch.delitem(table, Tensor, raising=False)
    launch.torch_stream.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def _no_fakes_left() -> Any:
    yield
    launch.torch_stream.cache_clear()
    for table in (arrays._readers, warm._readers):  # pyright: ignore[reportPrivateUsage]
        table.pop(Tensor, None)
    warm._tensors.clear()  # pyright: ignore[reportPrivateUsage]


class Loaded:
    """A kernel that notes how it was launched."""

    limits = (100, 100, 100)
    compiled = "the compiled kernel"

    def __init__(self, place: str = "cuda:0") -> None:
        self.place = place
        self.launched: list[Any] = []

    def launch(self, *launched: Any) -> None:
        self.launched.append(launched)


def boxes(
    address: int, rows: int = 32, block: tuple[int, ...] = (16, 16), device: int = 0
) -> tile.TensorDescriptor:
    """Return a descriptor of an array of rows of 16."""
    base = Tensor(address, device=device)
    return tile.TensorDescriptor(base, block, shape=(rows, 16), strides=(16, 1))


def kernel(x, n, bias=None, s=1.0, *, BLOCK: constexpr = 64, MODE: constexpr):  # type: ignore[no-untyped-def]  # pyright: ignore
    raise NotImplementedError


def launches(function: Callable[..., object] = kernel) -> warm.Launches:
    return warm.Launches(parameters_of(function))


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def kept(*first: Any, **more: Any) -> tuple[warm.Launches, Loaded]:
    table, loaded = launches(), Loaded()
    table.keep(*call(*first, **more), loaded)  # pyright: ignore[reportArgumentType]
    return table, loaded


def test_a_call_is_repeated_with_its_own_addresses_and_numbers() -> None:
    table, loaded = kept(Tensor(0x1000), 33, MODE="a")
    for address, n, s in ((0x1000, 33, 1.0), (0x2000, 35, 2.5), (0x2000, 35, 2.5)):
        found = table.find(*call(Tensor(address), n, s=s, MODE="a"))
        assert found is not None
        repeated, values, passed = found
        assert values[1:] == (n, None, s, 64, "a")
        assert list(passed) == [address, n, s]
        assert repeated.run((2, 3), passed) == "the compiled kernel"
        assert loaded.launched.pop() == ((2, 3, 1), passed, 100)


def test_a_descriptor_is_passed_leaf_by_leaf() -> None:
    table, _ = kept(boxes(0x1000), 33, boxes(0x2000, 48), MODE="a")
    for first, n, size, s in ((0x1000, 33, 48, 1.0), (0x3000, 35, 64, 1.0), (0x3000, 35, 64, 2.0)):
        found = table.find(*call(boxes(first), n, boxes(0x5000, size), s=s, MODE="a"))
        assert found is not None
        numbers = [first, 32, 16, 16, 1, n, 0x5000, size, 16, 16, 1, s]
        assert list(found[2]) == numbers
    for other in (
        boxes(0x3008), boxes(0x3000, 40), boxes(0x3000, 48, (16, 8)), boxes(0x3000, device=1)
    ):  # fmt: skip
        assert table.find(*call(boxes(0x1000), 33, other, MODE="a")) is None


def test_arrays_that_are_the_same_are_another_kind_of_call() -> None:
    apart = call(Tensor(0x1000), 33, Tensor(0x2000), MODE="a")
    together = call(Tensor(0x2000), 33, Tensor(0x2000), MODE="a")
    in_boxes = call(boxes(0x2000), 33, boxes(0x2000), MODE="a")
    for kind, others in ((apart, [together]), (together, [apart]), (in_boxes, [apart, together])):
        table, _ = kept(*kind[0], **kind[1])
        for _ in range(2):
            assert table.find(*kind) is not None
            assert all(table.find(*other) is None for other in others)


def test_a_descriptor_of_another_library_goes_the_long_way() -> None:
    on_host = tile.TensorDescriptor(np.zeros((16, 16), np.float32), (16, 16))
    table, _ = kept(on_host, 33, MODE="a")
    assert table.find(*call(on_host, 33, MODE="a")) is None


def test_the_grid_is_checked_again() -> None:
    table, loaded = kept(Tensor(0x1000), 33, MODE="a")
    found = table.find(*call(Tensor(0x1000), 33, MODE="a"))
    assert found is not None
    assert found[0].run((0,), found[2]) is None
    with pytest.raises(KernelError, match="expected 0 to 100 programs on axis 0, found 101"):
        found[0].run(101, found[2])
    assert not loaded.launched


@pytest.mark.parametrize(
    "other",
    [
        call(Tensor(0x1004), 33, MODE="a"),
        call(Tensor(0x1000, "float16"), 33, MODE="a"),
        call(Tensor(0x1000, device=1), 33, MODE="a"),
        call(Tensor(0x1000, device=-1), 33, MODE="a"),
        call(np.zeros(4, np.float32), 33, MODE="a"),
        call(Tensor(0x1000), 32, MODE="a"),
        call(Tensor(0x1000), 1, MODE="a"),
        call(Tensor(0x1000), True, MODE="a"),
        call(Tensor(0x1000), 33.0, MODE="a"),
        call(Tensor(0x1000), 1 << 40, MODE="a"),
        call(Tensor(0x1000), np.int64(33), MODE="a"),
        call(Tensor(0x1000), 33, Tensor(0x1000), MODE="a"),
        call(Tensor(0x1000), 33, "text", MODE="a"),
        call(Tensor(0x1000), 33, (1, 2), MODE="a"),
        call(Tensor(0x1000), 33, MODE="b"),
        call(Tensor(0x1000), 33, MODE=constexpr("a")),
        call(Tensor(0x1000), 33, MODE=["a"]),
        call(Tensor(0x1000), 33, BLOCK=64.0, MODE="a"),
        call(Tensor(0x1000), 33, MODE="a", num_warps=8),
        call(Tensor(0x1000), 33, MODE="a", num_warps=[8]),
        call(Tensor(0x1000), 33),
        call(Tensor(0x1000), MODE="a"),
        call(Tensor(0x1000), 33, 1, 2, 3, 4, 5),
        call(Tensor(0x1000), 33, n=33, MODE="a"),
    ],
)
def test_a_call_of_another_kind_goes_the_long_way(other: Any) -> None:
    table, _ = kept(Tensor(0x1000), 33, MODE="a")
    assert table.find(*call(Tensor(0x1000), 33, MODE="a")) is not None
    assert table.find(*other) is None
    assert table.find(*call(Tensor(0x1000), 33, MODE="a")) is not None


@pytest.mark.parametrize(
    "args",
    [
        (Tensor(0x1000, device=-1), 33),
        (Tensor(0x1000, device=1), 33),
        (Tensor(0x1000), 33, Tensor(0x1000, device=1)),
        (np.zeros(4), 33),
        (4, 33),
    ],
)
def test_a_call_without_tensors_on_one_gpu_is_not_kept(args: Any) -> None:
    table, _ = kept(*args, MODE="a")
    assert table.find(*call(*args, MODE="a")) is None


def test_what_was_forgotten_is_not_repeated() -> None:
    table, _ = kept(Tensor(0x1000), 33, MODE="a")
    assert table.find(*call(Tensor(0x1000), 33, MODE="a")) is not None
    table.forget()
    assert table.find(*call(Tensor(0x1000), 33, MODE="a")) is None


def test_few_calls_are_known_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_MOST", 3)
    table, _ = kept(Tensor(0x1000), 33, MODE="a")
    for n in (33, 34, 35, 37, 33, 34, 39):
        found = table.find(*call(Tensor(0x1000), n, MODE="a"))
        assert found is not None
        assert list(found[2]) == [0x1000, n, 1.0]
    assert len(table._exact) <= 3  # pyright: ignore[reportPrivateUsage]


def test_names_of_parameters_do_not_clash() -> None:
    def odd(options, given, values, options_=3):  # type: ignore[no-untyped-def]  # pyright: ignore
        raise NotImplementedError

    bind = warm.binder(parameters_of(odd))  # pyright: ignore[reportUnknownArgumentType]
    assert bind(1, values=2, given=4, num_warps=8) == ((1, 4, 2, 3), {"num_warps": 8})
    with pytest.raises(TypeError):
        bind(1, 2)


TENSORS = st.builds(
    Tensor,
    st.sampled_from([0x1000, 0x2000, 0x1008]),
    st.sampled_from(["float32", "float16"]),
    st.sampled_from([0, 0, 0, 1]),
)
DESCRIPTORS = st.builds(
    boxes, st.sampled_from([0x1000, 0x1008]), st.sampled_from([32, 48, 17]),
    st.sampled_from([(16, 16), (8, 16)]), st.sampled_from([0, 0, 1]),
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, 16, 17, 31, -1, True, False, 1.0, 0.0, -0.0, 2.5, 1 << 40, None])
CONSTANTS = st.sampled_from([0, 1, True, False, 1.0, 0.0, -0.0, "a", None, (1,), (True,)])


def any_call(x: Any, n: Any, bias: Any, s: Any, block: Any, mode: Any, options: Any) -> Any:
    return call(x, n, bias, s=s, BLOCK=block, MODE=mode, **options)


CALLS = st.builds(
    any_call, st.one_of(TENSORS, DESCRIPTORS), NUMBERS, st.one_of(NUMBERS, TENSORS, DESCRIPTORS),
    NUMBERS, CONSTANTS, CONSTANTS,
    st.sampled_from([{}, {"num_warps": 4}, {"num_warps": 8}]),
)  # fmt: skip


def leaves(*values: Any) -> list[Any]:
    """Return all that is read of a call's arguments."""
    return [
        leaf
        for value in values
        for leaf in (
            (value.base, *value.shape, *value.strides)
            if isinstance(value, tile.TensorDescriptor)
            else (value,)
        )
    ]


def long_way(made: Any) -> object:
    """Return the key by which the long way tells kernels apart."""
    args, kwargs = made
    given = leaves(*args, kwargs["s"])
    found = [(value, argument) for value in given if (argument := read(value)) is not None]
    objects = [value for value, _ in found]
    same = same_arrays([a[1] for _, a in found], [a[2] for _, a in found], objects)
    types_: list[Any] = [argument and (argument[0], argument[2]) for argument in map(read, given)]
    types_ += [getattr(value, "boxes", None) for value in args]
    constants = [constant_key(kwargs[name]) for name in ("BLOCK", "MODE")]
    return types_, constants, kwargs.get("num_warps"), same


@given(first=CALLS, second=CALLS)
@example(
    any_call(Tensor(0x1000), 0, Tensor(0x1000), 0, 0, 0, {}),
    any_call(Tensor(0x2000), 0, Tensor(0x1000), 0, 0, 0, {}),
)
@example(
    any_call(Tensor(0x1000), 0, Tensor(0x1000), 0, 0, 0, {}),
    any_call(Tensor(0x2000), 0, Tensor(0x2000), 0, 0, 0, {}),
)
@settings(max_examples=300, deadline=None)
def test_a_call_is_found_exactly_when_the_long_way_would_find_its_kernel(
    first: Any, second: Any
) -> None:
    table, _ = kept(*first[0], **first[1])
    places = {a[2] for v in leaves(*first[0]) if (a := read(v)) is not None} - {None}
    for _ in range(2):
        found = table.find(*second)
        assert (found is not None) == (places == {"cuda:0"} and long_way(first) == long_way(second))
        if found is not None:
            values = leaves(*second[0], second[1]["s"])
            wanted = [argument[1] for v in values if (argument := read(v)) is not None]
            assert [float(v).hex() for v in found[2]] == [float(v).hex() for v in wanted]
