"""Trained policies, loaded with one call."""

import os
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
from penstock.algo import weights as policy_weights
from penstock.algo.distributions import Categorical, MultiCategorical
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.machine.files import READABLE_FILE, write_atomically
from penstock.machine.system_errors import in_words
from penstock.runs import checkpoint_file
from penstock.types.run import Weights

_SUFFIX = ".safetensors"


class TrainedPolicy:
    """A trained policy that acts on single observations or on batches. Used by one thread.

    For example::

        policy, env = penstock.load_policy("runs/first"), penstock.make("runs/first")
        (observation, _), ended = env.reset(seed=1), False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(policy.act(observation))
            ended = terminated or truncated

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
        self._inputs = PolicyInputs(spec, self._runner.network)
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
        actions = self._actions(rows, deterministic)
        self._remembered = rows.count
        return actions

    def predict(
        self,
        observation: Any,
        state: NDArray[np.float32] | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
    ) -> tuple[Any, NDArray[np.float32] | None]:
        """Returns the action for an observation, as `act`, and the state of a policy with memory, as Stable-Baselines3.

        The caller keeps the state, and passes it with the next observation. For example::

            state, episode_start = None, True
            for observation in observations:
                action, state = policy.predict(observation, state, episode_start)
                episode_start = False

        It does not use or change what `act` remembers, and needs no `reset`. Sampled actions continue the random
        numbers of `act`.

        Args:
            observation: One observation or a batch of N, as for `act`.
            state: State that the previous call returned: <float32>[parts, H], or [N, parts, H] for a batch; None: the
                first observation of each episode. Policies without memory have none.
            episode_start: Whether the observation is the first of an episode, or <bool>[N] for a batch: the state of
                its row is then not used. None: False.
            deterministic: Whether to take the most likely action instead of a sampled one. Stable-Baselines3's default
                is False.
            action_mask: Legal actions, as for `act`.

        Returns:
            The action or the N actions, and the state after the observation; None for a policy without memory.

        Raises:
            ConfigurationError: As `act`, or the state or `episode_start` does not fit the observation.
        """
        rows, kept = self._inputs.rows(observation, action_mask), self._runner.state
        begun = self._begun(episode_start, rows)
        if kept is None:
            if state is not None:
                raise ConfigurationError(f"this policy of {self.policy.spec.id} has no memory; leave out state")
            return self._actions(rows, deterministic), None
        self._runner.state = self._before(state, rows)
        try:
            actions = self._actions(rows, deterministic, begun)
            return actions, rows.shaped(self._runner.state)
        finally:
            self._runner.state = kept

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Saves the policy as it is now, without the optimizer, and returns the path; `load_policy` reads the file.

        A policy that is loaded from the file has the same parameters, bit for bit. For example::

            file = policy.save("cartpole.safetensors")
            again = penstock.load_policy(file)

        Args:
            path: File to write or to replace, `NAME.safetensors`, in a folder that exists.

        Raises:
            ConfigurationError: The name has another ending, or the file can't be written.
        """
        file = Path(path)
        if file.suffix != _SUFFIX:
            raise ConfigurationError(f"a policy is saved in a {_SUFFIX} file; name it {file}{_SUFFIX}")
        try:
            write_atomically(file, self.to_file(), READABLE_FILE)
        except OSError as error:
            raise ConfigurationError(f"can't write {file}: {in_words(error, file, 'choose another file')}") from None
        return file

    def to_file(self) -> bytes:
        """Returns the bytes of the file that `save` writes."""
        encoder = policy_weights.Encoder(self.policy)
        state = {name: tensor.contiguous() for name, tensor in encoder.state().items()}
        return checkpoint_file.sealed(encoder.encode(self.version, state).data)

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
        if self.policy.has_own_distributions:
            raise ConfigurationError(
                f"policy.module {self.policy.network.module!r} has distributions of its own, whose probabilities are"
                " not known; use act"
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

    def __repr__(self) -> str:
        return f"TrainedPolicy({self.policy.spec.id!r}, version {self.version})"

    def _actions(self, rows: Rows, deterministic: bool, begun: NDArray[np.bool_] | None = None) -> Any:
        """Returns the actions for `act` and `predict`. `begun` <bool>[N] are first rows of episodes."""
        if deterministic:
            action = self._runner.act_greedily(rows.leaves, mask=rows.mask, begun=begun)
        else:
            action, _ = self._runner.act(rows.leaves, self._noise(rows.count), mask=rows.mask, begun=begun)
        actions = self._action_map(action)
        return self._action_form.batch(actions) if rows.is_batch else self._action_form.single(actions)

    def _begun(self, episode_start: Any, rows: Rows) -> NDArray[np.bool_] | None:
        if episode_start is None:
            return None
        begun = np.asarray(episode_start, np.bool_)
        # A single observation may have a flag of its own or, as in Stable-Baselines3, an array of one.
        if begun.shape != (rows.count,) and (rows.is_batch or begun.shape):
            raise ConfigurationError(
                f"episode_start of shape {begun.shape} for {rows.count} observations; pass one bool for each"
            )
        return begun.reshape(rows.count)

    def _before(self, state: NDArray[np.float32] | None, rows: Rows) -> NDArray[np.float32]:
        """Returns the states <float32>[N, parts, H], or [1, parts, H] zeros, before the rows."""
        shape = self.policy.memory_shape
        assert shape is not None
        if state is None:
            return np.zeros((1, *shape), np.float32)
        given, wanted = np.asarray(state, np.float32), (rows.count, *shape) if rows.is_batch else shape
        if given.shape != wanted:
            raise ConfigurationError(
                f"a state of shape {given.shape}, where this policy of {self.policy.spec.id} expects {wanted}; pass the"
                " state that predict returned for as many observations, or None"
            )
        return given.reshape(rows.count, *shape)

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
    path: str | os.PathLike[str], *, seed: int | None = None, module: str | type | None = None, trust_code: bool = False
) -> TrainedPolicy:
    """Loads a policy from a run's folder (its best checkpoint, else its newest) or from a checkpoint file.

    A checkpoint of a policy with a module of its own (`policy.module`) names that module, and loading it would run the
    module's code. It is imported only if you name it too, or trust the file. For example::

        policy = penstock.load_policy("runs/first", seed=1)
        action = policy.act(observation)

    Args:
        path: Folder or file, or a `Run`.
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
