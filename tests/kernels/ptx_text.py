"""Parts of PTX texts that tests look at."""

from __future__ import annotations

import re


def loop_of(ptx: str) -> str:
    """Return the text of the loop around the products: the innermost that goes back over them."""
    product = ptx.index("wgmma.mma_async")
    labels = {match[1]: match.start() for match in re.finditer(r"^(\$\w+):", ptx, re.MULTILINE)}
    backward = [
        (match.end(), labels[match[1]])
        for match in re.finditer(r"bra(?:\.uni)?\s+(\$\w+);", ptx)
        if labels[match[1]] < product < match.start()
    ]
    _, start = min(backward)
    return ptx[start : max(end for end, label in backward if label == start)]
