"""Trained policies, loaded with one call."""

import secrets
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.policy_inputs import PolicyInputs, Rows
from penstock.acting.policies.randomness import Streams
from penstock.acting.policies.saved_policies import read_policy
from penstock.acting.values.leaves import ActionForm, unflatten
from penstock.acting.values.spaces import ActionMap
from penstock.algo.distributions import Categorical, MultiCategorical
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.types.run import Weights


class TrainedPolicy:
    """A trained policy that acts on single observations or on batches. Used by one thread.

    An argument is one observation if its arrays have the shapes of the observation space, and a batch of N if all of
    them have one more dimension in front; the results have that dimension too. Images have channels first or last. A
    single observation may lack dimensions of size 1. Where environment.frame_stack is above 1, the last frames are
    stacked along the first axis, or the channels of images, oldest first. `penstock.make` returns an environment whose
    observations have this form.

    A policy with memory remembers the observations since the last `reset`, separately for each row of a batch.

    Calls use one thread of torch, because more are slower for small networks, and leave the setting of
    `torch.set_num_threads` as it was.
    """

    def __init__(self, weights: Weights, *, seed: int | None = None, module: str | None = None) -> None:
        """Loads the policy. `seed` is the seed of sampled actions; None: a random one.

        `module` is the only module that may be imported. Raises `ForeignCode` if the weights name another one.
        """
        self._runner = PolicyRunner(weights, module=module)
        spec = self._runner.policy.spec
        self._action_map = ActionMap(spec.action, self._runner.network)
        self._action_form = ActionForm(spec.action, spec.action_types)
        self._inputs = PolicyInputs(spec, self._runner.network.observation_offsets)
        self._remembered: int | None = None
        self.reset(seed=secrets.randbits(64) if seed is None else seed)
        self.weights = weights

    @property
    def policy(self) -> Policy:
        """The torch module."""
        return self._runner.policy

    @property
    def version(self) -> int:
        """The policy version at which these weights were saved."""
        return self._runner.version

    def reset(self, *, seed: int | None = None) -> None:
        """Begins an episode, or a batch of them: a policy with memory forgets the previous one.

        Args:
            seed: Seed from which actions are sampled from now on, from 0 to 2^64 - 1; None: go on with the previous.
        """
        self._runner.forget()
        self._remembered = None
        if seed is not None:
            if not 0 <= seed < 2**64:
                raise ConfigurationError(f"the seed of a policy must be from 0 to 2^64 - 1; got {seed}")
            self._seed, self._steps = seed, 0

    def act(self, observation: Any, *, action_mask: Any = None, deterministic: bool = True) -> Any:
        """Returns the action for an observation, ready for `env.step`, or the actions for a batch.

        An action has the element types of the environment's space. Checkpoints of earlier releases do not record the
        types of integers, which are then int64.

        A policy with memory also needs `reset` before the first observation of each episode.

        Args:
            observation: Raw observations, as in training: an array, or a dict or a tuple of arrays.
            action_mask: Legal actions, in a form that environments use (docs/your-environment.md); required if the
                policy was trained with masks, unless the observation is a dict that contains it.
            deterministic: Whether to take the most likely action instead of a sampled one.

        Raises:
            ConfigurationError: The observation or the mask does not fit the policy's spaces, or has a number that is
                not finite.
        """
        rows = self._inputs.rows(observation, action_mask)
        self._check_remembered(rows)
        if deterministic:
            action = self._runner.act_greedily(rows.leaves, mask=rows.mask)
        else:
            action, _ = self._runner.act(rows.leaves, self._noise(rows.count), mask=rows.mask)
        self._remembered = rows.count
        actions = self._action_map(action)
        return self._action_form.batch(actions) if rows.is_batch else self._action_form.single(actions)

    def values(self, observation: Any) -> Any:
        """Returns the value of an observation as a float, or the values of a batch as <float32>[N].

        A value is the expected discounted return from the observation, in units of the rewards. A policy with memory
        does not remember the observation: call `values` before `act`. Raises `ConfigurationError` as `act`.
        """
        rows = self._inputs.rows(observation, None, masked=False)
        self._check_remembered(rows)
        values = self._runner.values(rows.leaves)
        return values if rows.is_batch else float(values[0])

    def probabilities(self, observation: Any, *, action_mask: Any = None) -> Any:
        """Returns the probability of each action.

        They have the nesting of the action space: <float32>[n] for Discrete(n), and ``[*shape, n]`` for each element of
        MultiDiscrete, where n is the largest number of alternatives, and of MultiBinary; after [N] for a batch. A
        policy with memory does not remember the observation. Raises `ConfigurationError` as `act`, and for actions
        without alternatives.
        """
        rows, tree = self._inputs.rows(observation, action_mask), self.policy.spec.action
        self._check_remembered(rows)
        for leaf in tree.leaves:
            if not leaf.space.choices:
                raise ConfigurationError(
                    f"an action of {self.policy.spec.id} is continuous{leaf.place}, so it has no probabilities"
                )
        distribution = self._runner.distribution(rows.leaves, mask=rows.mask)
        found = []
        for leaf, part in zip(tree.leaves, distribution.parts, strict=True):
            categorical = part.choices if isinstance(part, MultiCategorical) else part
            assert isinstance(categorical, Categorical)
            probabilities = categorical.log_probs.exp().numpy()[: rows.count]
            shape = getattr(leaf.space, "shape", ())
            found.append(rows.shaped(probabilities.reshape(rows.count, *shape, probabilities.shape[-1])))
        return unflatten(tree, found)

    def _noise(self, count: int) -> NDArray[np.float32]:
        streams = Streams(self._seed, 0, np.arange(count, dtype=np.uint32))
        noise = streams.draw(self.policy.noise, self._steps, 1)[:, 0]
        self._steps += 1
        return noise

    def _check_remembered(self, rows: Rows) -> None:
        if self._runner.state is not None and self._remembered not in (None, rows.count):
            raise ConfigurationError(
                f"{rows.count} observations after {self._remembered}, whose memory this policy carries on; call reset"
                " before another number of observations"
            )


def load_policy(
    path: str | Path, *, seed: int | None = None, module: str | type | None = None, trust_code: bool = False
) -> TrainedPolicy:
    """Loads a policy from a run's folder (its best checkpoint, else its newest) or from a checkpoint file.

    A checkpoint of a policy with a module of its own (`policy.module`) names that module, and loading it would run the
    module's code. It is imported only if you name it too, or trust the file.

    Args:
        path: Folder or file.
        seed: Seed of sampled actions; None: a random one.
        module: Class of the policy's module, or its name, such as "file.py:MyNet". It is used in place of the one that
            the file names, which must be the same, or a file of the same name in another folder.
        trust_code: Whether to import the module that the file names.

    Raises:
        DamagedFile: The file is damaged; the message names another checkpoint to use.
        ForeignCode: The file names a module other than `module`. Nothing was imported.
        ConfigurationError: There is no checkpoint, or this release can't load it.
    """
    saved = read_policy(path, module=module, trust_code=trust_code)
    with saved.errors_named():
        return TrainedPolicy(saved.weights, seed=seed, module=saved.network.module)
