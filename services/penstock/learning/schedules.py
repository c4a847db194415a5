"""Values that change over a run, as functions of the share of it that is done."""


def scheduled(initial: float, schedule: str, progress: float) -> float:
    """A setting at `progress` in [0, 1]: constant, or linear to zero."""
    return initial * max(0.0, 1.0 - progress) if schedule == "linear" else initial


def beta(initial: float, final: float, progress: float) -> float:
    """The exponent of the importance correction, linear over the run (Schaul et al. 2016)."""
    return initial + (final - initial) * min(1.0, progress)
