"""Trained policies, loaded with one call."""

import secrets
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock import checkpoint_file
from penstock.acting.inference import PolicyRunner
from penstock.acting.randomness import Streams
from penstock.acting.spaces import ActionMap
from penstock.algo import weights as policy_weights
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder
from penstock.types.run import Weights


class TrainedPolicy:
    """A trained policy that acts on single observations."""

    def __init__(self, weights: Weights) -> None:
        self._runner = PolicyRunner(weights)
        self._action_map = ActionMap(self._runner.policy.spec.action)
        self._streams, self._steps = Streams(secrets.randbits(64), 0, np.zeros(1, np.uint32)), 0
        self.weights = weights

    @property
    def policy(self) -> Policy:
        """The torch module."""
        return self._runner.policy

    @property
    def version(self) -> int:
        """The policy version at which these weights were saved."""
        return self._runner.version

    def act(self, observation: ArrayLike, *, deterministic: bool = True) -> NDArray[np.generic] | np.int64:
        """Returns the action for one observation, ready for `env.step`.

        Args:
            observation: Raw observation, as in training. A flat observation is passed as the environment returns it.
                Images have channels first. Where environment.frame_stack is above 1, the last frames are stacked along
                the first axis, oldest first. `acting.frames` does both.
            deterministic: Whether to take the most likely action instead of a sampled one.
        """
        rows = np.asarray(observation, np.float32)[None]
        if deterministic:
            action = self._runner.act_greedily(rows)
        else:
            noise = self._streams.draw(self.policy.noise, self._steps, 1)
            self._steps += 1
            action, _ = self._runner.act(rows, noise[:, 0])
        result: NDArray[np.generic] | np.int64 = self._action_map(action, squashed=self._runner.squashes)[0]
        return result


def load_policy(path: str | Path) -> TrainedPolicy:
    """Loads a policy from a run's folder (its best checkpoint, else its newest) or from a checkpoint file.

    Raises `DamagedFile`, with another checkpoint to use, if it is damaged, and `ConfigurationError` if there is none or
    this release can't load it.
    """
    return TrainedPolicy(read_weights(find_checkpoint(Path(path))))


def find_checkpoint(path: Path) -> Path:
    """Returns the file itself, or a run's checkpoint to use. Raises `ConfigurationError` if there is none."""
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
    """Reads the weights in a checkpoint file. Raises `DamagedFile`, or `ConfigurationError` as `load_policy`."""
    data = checkpoint_file.read(path).data
    try:
        weights = Weights.of(policy_weights.read_version(data), data)
        policy_weights.load(weights)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        # Only a file of a release without digests can get here.
        raise checkpoint_file.damaged(path, str(error)) from None
    return weights
