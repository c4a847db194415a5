"""A trained policy, loaded with one call."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.acting.inference import PolicyRunner
from penstock.acting.spaces import ActionMap
from penstock.algo import weights as policy_weights
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder
from penstock.types import DiscreteSpace, Weights


class TrainedPolicy:
    """Acts on single observations, as an environment hands them out."""

    def __init__(self, weights: Weights) -> None:
        self._runner = PolicyRunner(weights)
        self._action_map = ActionMap(self._runner.policy.spec.action)
        self._generator = np.random.default_rng()
        self.weights = weights

    @property
    def policy(self) -> Policy:
        """The torch module."""
        return self._runner.policy

    @property
    def version(self) -> int:
        """The training batch after which these weights were saved."""
        return self._runner.version

    def act(self, observation: ArrayLike, *, deterministic: bool = True) -> NDArray[np.generic] | np.int64:
        """The action for one observation, ready for `env.step`.

        Args:
            observation: Raw, of the environment's shape.
            deterministic: Take the most likely action rather than a sampled one.
        """
        rows = np.asarray(observation, np.float32)[None]
        if deterministic:
            action = self._runner.act_greedily(rows)
        else:
            size = (1, self.policy.noise_size)
            discrete = isinstance(self.policy.spec.action, DiscreteSpace)
            noise = self._generator.random(size) if discrete else self._generator.standard_normal(size)
            action, _ = self._runner.act(rows, noise.astype(np.float32))
        result: NDArray[np.generic] | np.int64 = self._action_map(action, squashed=self._runner.squashes)[0]
        return result


def load_policy(path: str | Path) -> TrainedPolicy:
    """Loads a policy from a run's folder (its best checkpoint, else its newest) or from a checkpoint file.

    Raises:
        ConfigurationError: There is no checkpoint, or it is cut short.
    """
    return TrainedPolicy(read_weights(find_checkpoint(Path(path))))


def find_checkpoint(path: Path) -> Path:
    """The checkpoint to use of a run's folder or a file. Raises `ConfigurationError` if there is none."""
    if path.is_file():
        return path
    folder = RunFolder(path)
    if folder.best_checkpoint.exists():
        return folder.best_checkpoint
    numbered = folder.numbered_checkpoints()
    if not numbered:
        raise ConfigurationError(f"{path} holds no checkpoint; name a run's folder or a .safetensors file")
    return numbered[-1]


def read_weights(path: Path) -> Weights:
    """The weights in a checkpoint file. Raises `ConfigurationError` if it can't be read or is cut short."""
    try:
        data = path.read_bytes()
        version = policy_weights.read_version(data)
        weights = Weights.of(version, data)
        policy_weights.load(weights)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"can't read the checkpoint {path}: {error.strerror}") from None
    return weights
