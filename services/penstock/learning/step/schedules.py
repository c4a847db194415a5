"""Values that change over a run, as functions of the share of the run that is done."""

import dataclasses

from penstock.algo.losses import SCHEDULED, LossSettings
from penstock.config import PPOConfig


def scheduled(initial: float, schedule: str, progress: float) -> float:
    """Returns a setting at `progress` in [0, 1]: constant, or linear to zero."""
    return initial * max(0.0, 1.0 - progress) if schedule == "linear" else initial


def beta(initial: float, final: float, progress: float) -> float:
    """Returns the exponent of the importance correction, linear over the run (Schaul et al. 2016)."""
    return initial + (final - initial) * min(1.0, progress)


def loss_settings(ppo: PPOConfig, progress: float) -> LossSettings:
    """Returns the loss's settings at `progress`, from the settings of the same names in [ppo]."""

    def value(name: str) -> float:
        setting: float = getattr(ppo, name)
        return scheduled(setting, getattr(ppo, SCHEDULED[name]), progress) if name in SCHEDULED else setting

    return LossSettings(**{each.name: value(each.name) for each in dataclasses.fields(LossSettings)})  # type: ignore[arg-type]
