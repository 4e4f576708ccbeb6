"""Launches that begin while the ones before them end see all that those wrote."""

import pytest

import tiledsl as tile

pytestmark = pytest.mark.gpu


@tile.jit
def turn(x, y, n, shift, rounds, BLOCK: tile.constexpr):
    at = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + (at + shift) % n)
    # Programs are busy for different times, the first ones longest.
    for _ in range(rounds * (tile.num_programs(0) - tile.program_id(0))):
        value = value * 3 + 1
    tile.store(y + at, value)


@tile.jit
def count(x, total, BLOCK: tile.constexpr):
    at = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.atomic_add(total, tile.sum(tile.load(x + at)))


def test_a_chain_of_launches_reads_what_the_one_before_wrote() -> None:
    torch = pytest.importorskip("torch")
    n, block, shift = 1 << 17, 256, 12_345
    launches = n // block
    first = torch.arange(n, dtype=torch.int32, device="cuda")
    some = [first.clone(), torch.empty_like(first)]
    totals = torch.zeros(60, dtype=torch.int32, device="cuda")
    for number in range(60):
        old, new = some[number % 2], some[1 - number % 2]
        turn[launches,](old, new, n, shift, 1, BLOCK=block)
        count[launches,](new, totals[number:], BLOCK=block)
        if number % 7 == 3:  # others' launches know nothing of ours
            new.add_(1)
    wanted, index = first.cpu().long(), torch.arange(n)
    for number in range(60):
        wanted = wanted[(index + shift) % n]
        rounds = launches - index // block
        factor = torch.tensor([pow(3, int(r), 1 << 32) for r in range(launches + 1)])
        added = torch.tensor([(pow(3, int(r), 1 << 33) - 1) // 2 for r in range(launches + 1)])
        wanted = (wanted * factor[rounds] + added[rounds]) & 0xFFFFFFFF
        total = int(wanted.sum()) & 0xFFFFFFFF
        assert int(totals[number]) & 0xFFFFFFFF == total, number
        if number % 7 == 3:
            wanted = (wanted + 1) & 0xFFFFFFFF
    assert torch.equal(some[0].cpu().long() & 0xFFFFFFFF, wanted)
