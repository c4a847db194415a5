"""Penstock: asynchronous PPO from prioritized experience, as gRPC services.

Train an agent, load its policy, and act::

    import penstock

    run = penstock.train("CartPole-v1", total_steps=50_000)  # or the class of an environment
    print(run.evaluate(episodes=20))
    action, state = run.policy.predict(observation)
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.acting.environments.wrappers.texts import TextTokens as TextTokens
    from penstock.acting.policies.trained import TrainedPolicy as TrainedPolicy
    from penstock.acting.policies.trained import load_policy as load_policy
    from penstock.advantages import Trajectories as Trajectories
    from penstock.api.demonstrations import Recording as Recording
    from penstock.api.demonstrations import record_demonstrations as record_demonstrations
    from penstock.api.run import Run as Run
    from penstock.api.run import TrainedRun as TrainedRun
    from penstock.api.run import evaluate as evaluate
    from penstock.api.run import list_runs as list_runs
    from penstock.api.stream import Stream as Stream
    from penstock.api.stream import stream as stream
    from penstock.api.training import train as train
    from penstock.apps.environments import make as make
    from penstock.config import Config as Config
    from penstock.errors import ConfigurationError as ConfigurationError
    from penstock.errors import PenstockError as PenstockError
    from penstock.local.stopping import Interrupted as Interrupted
    from penstock.losses import LossSettings as LossSettings
    from penstock.losses import Minibatch as Minibatch
    from penstock.presets import Preset as Preset
    from penstock.presets import configure as configure
    from penstock.presets import list_presets as list_presets
    from penstock.presets import preset as preset
    from penstock.priorities import Segments as Segments
    from penstock.runs.evaluation import Evaluation as Evaluation
    from penstock.runs.metrics import Metrics as Metrics
    from penstock.runs.metrics import load_metrics as load_metrics
    from penstock.runs.summary import Summary as Summary
    from penstock.types.variants import RunVariant as RunVariant

__version__ = "0.3.0"

if sys.platform == "win32":
    raise ImportError("Penstock uses files, sockets and processes as Unix has them; on Windows, use WSL 2 or Docker")

# Names are imported on first use, so that a service loads only the modules it needs.
_HOMES = {
    "Config": "penstock.config",
    "ConfigurationError": "penstock.errors",
    "Evaluation": "penstock.runs.evaluation",
    "Interrupted": "penstock.local.stopping",
    "LossSettings": "penstock.losses",
    "Metrics": "penstock.runs.metrics",
    "Minibatch": "penstock.losses",
    "PenstockError": "penstock.errors",
    "Preset": "penstock.presets",
    "Recording": "penstock.api.demonstrations",
    "Run": "penstock.api.run",
    "RunVariant": "penstock.types.variants",
    "Segments": "penstock.priorities",
    "Stream": "penstock.api.stream",
    "Summary": "penstock.runs.summary",
    "TextTokens": "penstock.acting.environments.wrappers.texts",
    "TrainedPolicy": "penstock.acting.policies.trained",
    "TrainedRun": "penstock.api.run",
    "Trajectories": "penstock.advantages",
    "configure": "penstock.presets",
    "evaluate": "penstock.api.run",
    "list_presets": "penstock.presets",
    "list_runs": "penstock.api.run",
    "load_metrics": "penstock.runs.metrics",
    "load_policy": "penstock.acting.policies.trained",
    "make": "penstock.apps.environments",
    "preset": "penstock.presets",
    "record_demonstrations": "penstock.api.demonstrations",
    "stream": "penstock.api.stream",
    "train": "penstock.api.training",
}

__all__ = [
    "Config",
    "ConfigurationError",
    "Evaluation",
    "Interrupted",
    "LossSettings",
    "Metrics",
    "Minibatch",
    "PenstockError",
    "Preset",
    "Recording",
    "Run",
    "Segments",
    "Stream",
    "Summary",
    "TextTokens",
    "TrainedPolicy",
    "TrainedRun",
    "Trajectories",
    "configure",
    "evaluate",
    "list_presets",
    "list_runs",
    "load_metrics",
    "load_policy",
    "make",
    "preset",
    "record_demonstrations",
    "stream",
    "train",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
