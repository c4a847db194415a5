"""Penstock: asynchronous PPO from prioritized experience, as gRPC services.

    import penstock

    summary = penstock.train("CartPole-v1")  # or the class of an environment, or penstock.preset("cartpole")
    policy = penstock.load_policy(summary.run_dir)
    action = policy.act(observation)

Names are imported on first use, so that a service loads only the modules it needs.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.acting.trained import TrainedPolicy as TrainedPolicy
    from penstock.acting.trained import load_policy as load_policy
    from penstock.api import train as train
    from penstock.config import Config as Config
    from penstock.errors import PenstockError as PenstockError
    from penstock.presets import configure as configure
    from penstock.presets import preset as preset
    from penstock.summary import Summary as Summary

__version__ = "0.1.0"

_HOMES = {
    "train": "penstock.api",
    "Summary": "penstock.summary",
    "Config": "penstock.config",
    "configure": "penstock.presets",
    "preset": "penstock.presets",
    "PenstockError": "penstock.errors",
    "load_policy": "penstock.acting.trained",
    "TrainedPolicy": "penstock.acting.trained",
}

__all__ = ["Config", "PenstockError", "Summary", "TrainedPolicy", "configure", "load_policy", "preset", "train"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
