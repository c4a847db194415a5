"""The choice between the single and the vectorised form of an environment, under `environment.vectorization auto`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec

from penstock.acting.environments.native.classic_control import acrobot, pendulum
from penstock.acting.environments.native.envpool import is_pool

_MODULE = "gymnasium.envs.classic_control."
_FORMS: dict[str, Any] = {"Pendulum-v1": pendulum, "Acrobot-v1": acrobot}
_ATARI, _ATARI_VECTOR = "ale_py.env:AtariEnv", "ale_py.vector_env:AtariVectorEnv"

_SAME_STEPS = {
    "CartPole-v1": frozenset({"max_episode_steps", "sutton_barto_reward"}),
    "Pendulum-v1": frozenset({"max_episode_steps", "g"}),
    "Acrobot-v1": frozenset({"max_episode_steps"}),
}
"""Arguments of the vectorised forms that take the same steps as the single ones, which take more arguments.

The numbers of CartPole's differ in the last digits of float32.
"""

_FEWEST = 8
"""Environments from which on no form of them takes more time than single ones, which CartPole decides."""


def with_native_form(spec: EnvSpec) -> EnvSpec:
    """Returns the spec with Penstock's vectorised form, if there is one and the spec is Gymnasium's own.

    The older ids of ALE's games, such as PongNoFrameskip-v4, get the form with which the new ones are registered.
    """
    if spec.entry_point == _ATARI and spec.vector_entry_point is None:
        return dataclasses.replace(spec, vector_entry_point=_ATARI_VECTOR)
    form = _FORMS.get(spec.id)
    return dataclasses.replace(spec, vector_entry_point=form) if form is not None and _is_gymnasiums(spec) else spec


def is_chosen(spec: EnvSpec, arguments: Mapping[str, object], count: int) -> bool:
    """Returns whether `environment.vectorization auto` makes N environments in their vectorised form.

    It does so for tasks of EnvPool, for classes of vector environments, and for environments of Gymnasium whose
    vectorised form takes the same steps as the single one, takes these arguments, and takes less time.
    """
    if is_pool(spec) or spec.entry_point is None:
        return True
    taken, limit = _SAME_STEPS.get(spec.id), arguments.get("max_episode_steps", 1)
    is_same = taken is not None and _is_gymnasiums(spec) and taken.issuperset(arguments)
    # A limit of -1 means none to `gymnasium.make`.
    return is_same and count >= _FEWEST and isinstance(limit, int) and limit > 0


def _is_gymnasiums(spec: EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith(_MODULE)
