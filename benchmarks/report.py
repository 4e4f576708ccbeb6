"""What a run found, as a table, as JSON and as plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.case import Row

HEAD = (
    f"{'':28} {'':18} {'':22} {'burst':>8} {'':8} {'ratio':>6} {'sustained':>9} {'ratio':>6} error"
)


def line(row: Row) -> str:
    """Return a row of the table."""

    def number(value: float | None, width: int, form: str) -> str:
        return format(value, form).rjust(width) if value is not None else " " * width

    return (
        f"{row.what:28} {row.size:18} {row.who:22} {row.burst:8.2f} {row.unit:8} "
        f"{number(row.burst_ratio, 6, '.3f')} {number(row.sustained, 9, '.1f')} "
        f"{number(row.sustained_ratio, 6, '.3f')} {number(row.error, 7, '.1e')}"
    ).rstrip()


def write(rows: Sequence[Row], about: dict[str, Any], folder: Path) -> None:
    """Write the table, the JSON and a plot for each family to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in dict.fromkeys(row.family for row in rows):
        own = [row for row in rows if row.family == family]
        text = "\n".join([HEAD, *map(line, own)])
        (folder / f"{family}.txt").write_text(text + "\n")
        whole = {"about": about, "rows": [asdict(row) for row in own]}
        (folder / f"{family}.json").write_text(json.dumps(whole, indent=1) + "\n")
        _plot(family, own, folder)


def _plot(family: str, rows: Sequence[Row], folder: Path) -> None:
    """Draw ratios against sizes: a panel for each thing computed, a line for each contender."""
    rows = [row for row in rows if row.burst_ratio is not None]
    if not rows:
        return
    if find_spec("matplotlib") is None:
        print(f"{family}: no plot, as matplotlib is not installed")
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys(row.what for row in rows))
    wide = min(3, len(panels))
    tall = -(-len(panels) // wide)
    figure, grid = pyplot.subplots(tall, wide, figsize=(5 * wide, 3.5 * tall), squeeze=False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    for axes, what in zip(grid.flat, panels, strict=False):
        _draw(axes, [row for row in rows if row.what == what])
        axes.set_title(what, fontsize=9)
    figure.suptitle(f"{family}: speed relative to the library (o burst, x sustained)", fontsize=10)
    figure.tight_layout()
    figure.savefig(folder / f"{family}.png", dpi=120)
    pyplot.close(figure)


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    sizes = list(dict.fromkeys(row.size for row in rows))
    for who in dict.fromkeys(row.who for row in rows):
        own = [row for row in rows if row.who == who]
        (drawn,) = axes.plot(
            [sizes.index(row.size) for row in own],
            [row.burst_ratio for row in own],
            "o-",
            label=who,
        )
        held = [row for row in own if row.sustained_ratio is not None]
        places = [sizes.index(row.size) for row in held]
        ratios = [row.sustained_ratio for row in held]
        axes.plot(places, ratios, "x:", color=drawn.get_color())
    axes.set_xticks(range(len(sizes)), sizes, rotation=30, ha="right", fontsize=7)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
