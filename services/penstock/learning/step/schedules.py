"""Settings of the algorithm that change during a run, as functions of the run's progress in [0, 1]."""

import dataclasses
import math

import numpy as np

from penstock.algo.losses import SCHEDULED, LossSettings
from penstock.config import PPOConfig, Schedule


def scheduled(initial: float, schedule: Schedule, progress: float) -> float:
    """Returns a setting: constant, to zero in a line or half a cosine, or between points."""
    match schedule:
        case "constant":
            return initial
        case "linear":
            return initial * max(0.0, 1.0 - progress)
        case "cosine":
            return initial * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        case points:
            places, shares = np.array(points).T
            return initial * float(np.interp(progress, places, shares))


def importance_exponent(initial: float, final: float, progress: float) -> float:
    """Returns the exponent of the importance correction, linear over the run (Schaul et al. 2016)."""
    return initial + (final - initial) * min(1.0, progress)


def loss_settings(ppo: PPOConfig, progress: float) -> LossSettings:
    """Returns the settings of the loss, from the settings of the same names in [ppo]."""

    def value(name: str) -> float:
        setting: float = getattr(ppo, name)
        return scheduled(setting, getattr(ppo, SCHEDULED[name]), progress) if name in SCHEDULED else setting

    return LossSettings(**{each.name: value(each.name) for each in dataclasses.fields(LossSettings)})  # type: ignore[arg-type]
