"""Returns as they are shown."""

import math


def return_text(mean: float, std: float | None = None) -> str:
    """Returns a return, or the mean and the standard deviation of several, as text.

    It has one decimal, or as many as show three digits of the larger number: rewards of some tasks are far below 1.
    """
    largest = max(abs(mean), std or 0.0)
    small = 0.0 < largest < 10.0
    decimals = min(2 - math.floor(math.log10(largest)), 9) if small else 1
    shown = f"{mean:.{decimals}f}"
    return shown if std is None else f"{shown} ± {std:.{decimals}f}"
