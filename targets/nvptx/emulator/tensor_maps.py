"""Tensor maps as the emulator keeps them in the 128 bytes that a kernel is given.

CUDA's driver encodes a tensor map in a way that it does not document. A kernel never looks inside,
so the emulated driver may have an encoding of its own: `encode` makes it of the description that
the real driver encodes (`nvptx.tensor_map.TensorMap`), and `decode` gives the description back to
TMA.
"""

from __future__ import annotations

import struct

from tiledsl.targets.nvptx.tensor_map import TensorMap

BYTES = 128
_MAGIC = b"tilemap1"
_ELEMENTS = (
    "i8", "ui8", "ui16", "i16", "ui32", "i32", "ui64", "i64", "f16", "f32", "f64", "bf16",
    "f8E4M3FN", "f8E5M2", "tf32",
)  # fmt: skip
_HEAD = struct.Struct("<8sBBHHxxQ")
_RANK = 5


def encode(tensor: TensorMap) -> bytes:
    """Return the 128 bytes that stand for a tensor map in an emulated kernel's arguments."""
    rank = len(tensor.shape)
    padding = _RANK - rank
    code = _ELEMENTS.index(tensor.element)
    head = _HEAD.pack(_MAGIC, rank, code, tensor.swizzle, tensor.l2_promotion, tensor.address)
    shape = struct.pack("<5I", *(n - 1 for n in tensor.shape), *(0,) * padding)
    strides = struct.pack("<4Q", *tensor.strides, *(0,) * padding)
    box = struct.pack("<5H", *tensor.box, *(0,) * padding)
    return (head + shape + strides + box).ljust(BYTES, b"\0")


def decode(data: bytes) -> TensorMap | None:
    """Return the tensor map that some bytes stand for; None if they are none."""
    if len(data) < BYTES or data[:8] != _MAGIC:
        return None
    fields: tuple[int, ...] = _HEAD.unpack_from(data)[1:]
    rank, code, swizzle, promotion, address = fields
    position = _HEAD.size
    shape: tuple[int, ...] = struct.unpack_from("<5I", data, position)
    strides: tuple[int, ...] = struct.unpack_from("<4Q", data, position + 20)
    box: tuple[int, ...] = struct.unpack_from("<5H", data, position + 52)
    return TensorMap(
        _ELEMENTS[code],
        address,
        tuple(n + 1 for n in shape[:rank]),
        tuple(strides[: rank - 1]),
        tuple(box[:rank]),
        swizzle,
        promotion,
    )
