"""Trained policies, loaded with one call."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import checkpoint_file
from penstock.acting import masks
from penstock.acting.inference import PolicyRunner
from penstock.acting.leaves import flatten, unflatten
from penstock.acting.masks import MaskSource, Place
from penstock.acting.randomness import Streams
from penstock.acting.spaces import ActionMap
from penstock.algo import weights as policy_weights
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder
from penstock.types.run import Weights


class TrainedPolicy:
    """A trained policy that acts on single observations, one episode after the other."""

    def __init__(self, weights: Weights) -> None:
        self._runner = PolicyRunner(weights)
        self._action_map = ActionMap(self._runner.policy.spec.action)
        self._streams, self._steps = Streams(secrets.randbits(64), 0, np.zeros(1, np.uint32)), 0
        self._begun = np.ones(1, np.bool_)
        self.weights = weights

    @property
    def policy(self) -> Policy:
        """The torch module."""
        return self._runner.policy

    @property
    def version(self) -> int:
        """The policy version at which these weights were saved."""
        return self._runner.version

    def reset(self) -> None:
        """Begins an episode: a policy with memory forgets the previous one."""
        self._begun = np.ones(1, np.bool_)

    def act(self, observation: Any, *, action_mask: Any = None, deterministic: bool = True) -> Any:
        """Returns the action for one observation, ready for `env.step`.

        A policy with memory also needs `reset` before the first observation of each episode.

        Args:
            observation: Raw observation, as in training: an array, or a dict or a tuple of arrays. Images have channels
                first. Where environment.frame_stack is above 1, the last frames are stacked along the first axis,
                oldest first. `acting.frames` does both.
            action_mask: Legal actions, in a form that environments use (docs/your-environment.md); required if the
                policy was trained with masks, unless the observation is a dict that contains it.
            deterministic: Whether to take the most likely action instead of a sampled one.

        Raises:
            ConfigurationError: The observation or the mask does not fit the policy's spaces.
        """
        rows, mask = self._rows_of(observation), self._mask_of(observation, action_mask)
        begun, self._begun = self._begun, np.zeros(1, np.bool_)
        if deterministic:
            action = self._runner.act_greedily(rows, mask=mask, begun=begun)
        else:
            noise = self._streams.draw(self.policy.noise, self._steps, 1)
            self._steps += 1
            action, _ = self._runner.act(rows, noise[:, 0], mask=mask, begun=begun)
        mapped = self._action_map(action, squashed=self._runner.squashes)
        return unflatten(self.policy.spec.action, [leaf[0] for leaf in mapped])

    def _rows_of(self, observation: Any) -> tuple[NDArray[np.generic], ...]:
        spec = self.policy.spec
        rows = []
        for leaf, value in zip(spec.observation.leaves, flatten(spec.observation, observation), strict=True):
            dtype, shape = leaf.space.observation_array
            row = np.asarray(value, np.float32 if dtype.startswith("float") else None)
            if row.shape != shape:
                raise ConfigurationError(
                    f"an observation of shape {row.shape}{leaf.place}, where this policy of {spec.id} expects {shape};"
                    " pass it as the policy saw it in training"
                )
            rows.append(row[None])
        return tuple(rows)

    def _mask_of(self, observation: Any, action_mask: Any) -> NDArray[np.bool_] | None:
        spec = self.policy.spec
        if action_mask is None and isinstance(observation, Mapping):
            action_mask = observation.get(masks.KEY)
        if not spec.mask_bits:
            return None
        if action_mask is None:
            raise ConfigurationError(
                f"this policy of {spec.id} was trained with action masks of {spec.mask_bits} bits; pass action_mask"
            )
        source = MaskSource(Place.INFO, spec.action)
        source.check(action_mask)
        return source.row(action_mask)[None]


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
