"""Describe a tensor in global memory to TMA, the unit that copies boxes of it to shared memory.

The driver encodes a description (`CudaDriver.encode_tensor_map`) to the 128 bytes that a kernel
takes; the emulator reads the description itself. The rules are checked here, by name, because the
driver answers every fault with CUDA_ERROR_INVALID_VALUE.

Source: CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dialects.diagnostics import KernelError

# MLIR's name of a type to CUtensorMapDataType and its size.
_TYPES = {
    "i8": (0, 1), "ui8": (0, 1), "ui16": (1, 2), "i16": (1, 2), "ui32": (2, 4), "i32": (3, 4),
    "ui64": (4, 8), "i64": (5, 8), "f16": (6, 2), "f32": (7, 4), "f64": (8, 8), "bf16": (9, 2),
    "f8E4M3FN": (0, 1), "f8E5M2": (0, 1), "tf32": (11, 4),
}  # fmt: skip
ELEMENTS = frozenset(_TYPES)
"""Names of the element types that boxes can have."""
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_MAX_BOX = 256


def element_bytes(element: str) -> int:
    """Return the size of an element of a type."""
    return _TYPES[element][1]


@dataclass(frozen=True)
class TensorMap:
    """A strided tensor and the box to copy; dimensions run from the contiguous one outwards.

    Attributes:
        element: MLIR's name of the element type; "tf32" is f32 that is rounded on the way.
        address: Of the first element; a multiple of 16.
        shape: Elements along each dimension.
        strides: Bytes from one element to the next along each dimension but the first; multiples
            of 16.
        box: Elements along each dimension of what one copy moves.
        swizzle: Bytes of the shared-memory swizzle pattern: 0, 32, 64 or 128.
        l2_promotion: Bytes that a miss brings into the L2 cache: 0, 64, 128 or 256.

    Elements outside the tensor read as zero, and are not written.
    """

    element: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 256

    def __post_init__(self) -> None:
        for holds, wanted in self._rules():
            if not holds:
                raise KernelError(f"expected a TMA descriptor with {wanted}, found {self}")

    def _rules(self) -> list[tuple[bool, str]]:
        rank = len(self.shape)
        known = self.element in _TYPES
        inner = self.box[0] * self.element_bytes if known and self.box else 0
        return [
            (known, f"an element type among {', '.join(_TYPES)}"),
            (1 <= rank <= 5, "one to five dimensions"),
            (len(self.strides) == rank - 1, "a stride for each dimension but the first"),
            (len(self.box) == rank, "a box of the tensor's rank"),
            (self.address % 16 == 0, "an address that is a multiple of 16"),
            (all(0 < n <= 2**32 for n in self.shape), "1 to 2**32 elements a dimension"),
            (
                all(0 < n < 2**40 and n % 16 == 0 for n in self.strides),
                "strides that are multiples of 16 below 2**40",
            ),
            (all(0 < n <= _MAX_BOX for n in self.box), f"a box of 1 to {_MAX_BOX} elements a side"),
            (inner % 16 == 0, "a box whose rows are multiples of 16 bytes"),
            (self.swizzle in _SWIZZLES, "a swizzle of 0, 32, 64 or 128 bytes"),
            (not self.swizzle or inner <= self.swizzle, "box rows no longer than the swizzle"),
            (self.l2_promotion in _L2_PROMOTIONS, "an L2 promotion of 0, 64, 128 or 256 bytes"),
        ]

    @property
    def element_bytes(self) -> int:
        """The size of one element."""
        return element_bytes(self.element)

    @property
    def box_bytes(self) -> int:
        """The bytes that one copy moves, and an mbarrier expects."""
        size = self.element_bytes
        for n in self.box:
            size *= n
        return size

    @property
    def type_code(self) -> int:
        """CUtensorMapDataType."""
        return _TYPES[self.element][0]

    @property
    def swizzle_code(self) -> int:
        """CUtensorMapSwizzle."""
        return _SWIZZLES[self.swizzle]

    @property
    def l2_code(self) -> int:
        """CUtensorMapL2promotion."""
        return _L2_PROMOTIONS[self.l2_promotion]
