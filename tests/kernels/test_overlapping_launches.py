"""Launches that begin while the ones before them end see all that those wrote."""

import pytest

import tiledsl as tile

pytestmark = pytest.mark.gpu


@tile.jit
def product(a, b, c):
    M, N = c.block_shape
    m, n = tile.program_id(0) * M, tile.program_id(1) * N
    acc = tile.zeros((M, N), tile.float32)
    for k in range(0, a.shape[1], a.block_shape[1]):
        acc = tile.dot(a.load([m, k]), b.load([k, n]), acc)
    c.store([m, n], acc.to(c.dtype))


@tile.jit
def add_one(x, BLOCK: tile.constexpr):
    at = x + tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(at, tile.load(at) + 1)


def test_a_chain_of_launches_reads_what_the_one_before_wrote() -> None:
    torch = pytest.importorskip("torch")
    size, launches = 1024, 60
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    turned = torch.zeros(size, size, dtype=torch.float16)
    turned[torch.arange(size), order] = 1  # row i of turned @ x is row order[i] of x
    left = tile.TensorDescriptor(turned.cuda(), (128, 64))
    first = torch.randint(0, 1000, (size, size), generator=torch.Generator().manual_seed(1))
    some = [first.half().cuda(), torch.empty(size, size, dtype=torch.float16, device="cuda")]
    for number in range(launches):
        old, new = some[number % 2], some[1 - number % 2]
        right, result = (
            tile.TensorDescriptor(old, (64, 128)),
            tile.TensorDescriptor(new, (128, 128)),
        )
        product[8, 8](left, right, result, num_warps=8)
        if number % 7 == 3:  # what does not overlap
            add_one[size * size // 1024,](new, BLOCK=1024)
        if number % 7 == 5:  # another library's
            new.add_(1)
    wanted = first
    for number in range(launches):
        wanted = wanted[order] + (1 if number % 7 in (3, 5) else 0)
    assert torch.equal(some[launches % 2].cpu().long(), wanted)
