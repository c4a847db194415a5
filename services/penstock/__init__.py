"""Penstock: asynchronous PPO from prioritized experience, as gRPC services.

Train an agent, load its policy, and act::

    import penstock

    summary = penstock.train("CartPole-v1", total_steps=50_000)  # or the class of an environment
    policy = penstock.load_policy(summary.run_dir)
    action = policy.act(observation)
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.acting.environments.texts import TextTokens as TextTokens
    from penstock.acting.policies.trained import TrainedPolicy as TrainedPolicy
    from penstock.acting.policies.trained import load_policy as load_policy
    from penstock.api import train as train
    from penstock.apps.environments import make as make
    from penstock.config import Config as Config
    from penstock.errors import ConfigurationError as ConfigurationError
    from penstock.errors import PenstockError as PenstockError
    from penstock.local.stopping import Interrupted as Interrupted
    from penstock.losses import LossSettings as LossSettings
    from penstock.losses import Minibatch as Minibatch
    from penstock.presets import configure as configure
    from penstock.presets import preset as preset
    from penstock.runs.metrics import Metrics as Metrics
    from penstock.runs.metrics import load_metrics as load_metrics
    from penstock.runs.summary import Summary as Summary

__version__ = "0.3.0"

if sys.platform == "win32":
    raise ImportError("Penstock uses files, sockets and processes as Unix has them; on Windows, use WSL 2 or Docker")

# Names are imported on first use, so that a service loads only the modules it needs.
_HOMES = {
    "Config": "penstock.config",
    "ConfigurationError": "penstock.errors",
    "Interrupted": "penstock.local.stopping",
    "LossSettings": "penstock.losses",
    "Metrics": "penstock.runs.metrics",
    "Minibatch": "penstock.losses",
    "PenstockError": "penstock.errors",
    "Summary": "penstock.runs.summary",
    "TextTokens": "penstock.acting.environments.texts",
    "TrainedPolicy": "penstock.acting.policies.trained",
    "configure": "penstock.presets",
    "load_metrics": "penstock.runs.metrics",
    "load_policy": "penstock.acting.policies.trained",
    "make": "penstock.apps.environments",
    "preset": "penstock.presets",
    "train": "penstock.api",
}

__all__ = [
    "Config",
    "ConfigurationError",
    "Interrupted",
    "LossSettings",
    "Metrics",
    "Minibatch",
    "PenstockError",
    "Summary",
    "TextTokens",
    "TrainedPolicy",
    "configure",
    "load_metrics",
    "load_policy",
    "make",
    "preset",
    "train",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
