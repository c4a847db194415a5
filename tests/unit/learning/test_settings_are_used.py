"""Every setting of the algorithm has an effect: a setting that is accepted and not used fails here.

The tables contain a value for each setting that differs from its default. With it, the learner must build another
policy, train another result from a batch, or request another plan. A new setting fails until it is in a table and has
an effect.
"""

import ast
import functools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

from penstock import config as configuration
from penstock.algo.network import Network
from penstock.config import Config, PolicyConfig, PPOConfig, SamplingConfig, build, merge, setting_names
from penstock.learning.run.assembly import learner_of
from penstock.learning.run.training import plan_of
from tests.support.environments.tiny import spec_of
from tests.support.training.training import CPU, make_batch

INTRINSIC = "tests.unit.learning.step.own.test_own_intrinsic:Predicted"
POLICY = {
    "hidden_sizes": [16, 8],
    "trunk": "shared",
    "activation": "relu",
    "initial_log_std": -1.0,
    "state_dependent_std": True,
    "squash_actions": True,
    "normalise_observations": False,
    "normalise_returns": False,
    "variance_epsilon": 0.1,
    "widest_range": 1.0,
    "encoders": {"observation": "embedding"},
    "memory": "gru",
    "memory_size": 8,
    "critic_only": ["luck"],
    "moves": "observation",
    "module": "examples.residual_network:Residual",
}
PPO = {
    "learning_rate": 1e-2,
    "learning_rate_schedule": "constant",
    "epochs": 4,
    "target_kl": 1e-9,
    "minibatches": 3,
    "discount": 0.9,
    "trace_decay": 0.5,
    "clip_range": 0.01,
    "clip_range_schedule": "linear",
    "value_clip_range": 1e-3,
    "value_coefficient": 1.5,
    "entropy_coefficient": 0.5,
    "entropy_schedule": "linear",
    "max_gradient_norm": 0.01,
    "normalise_advantages": False,
    "clip_anchor": 1.0,
    "advantage": "tests.unit.learning.step.own.test_own_advantage:one_step",
    "intrinsic_reward": INTRINSIC,
    "intrinsic_coefficient": 0.5,
    "intrinsic_discount": 0.5,
    "v_trace": False,
    "rho_clip": 0.5,
    "trace_clip": 0.5,
    "behaviour_weight_clip": 0.5,
    "burn_in_steps": 4,
}
SAMPLING = {
    "batch_segments": 64,
    "fresh_fraction": 0.5,
    "off_policy_degree": 3,
    "publish_interval": 2,
    "alpha": 0.9,
    "priority": "tests.unit.learning.step.own.test_own_priority:newest_step",
    "beta": 0.1,
    "final_beta": 0.5,
    "epsilon": 0.5,
    "half_life": 9.0,
    "max_staleness": 9,
    "min_replay_segments": 9,
    "least_share": 0.5,
}
RUN_SETTINGS = {
    "max_refused_batches",
    "collection",
    "observation_offsets",
    "demonstrations",
    "demonstration_fraction",
}
"""Settings that affect neither this batch nor the first plan. `test_refused_steps`, `test_collection`, `test_offsets`
and `test_demonstrations` cover them."""

TABLES: dict[str, tuple[type[pydantic.BaseModel], dict[str, Any]]] = {
    "policy": (PolicyConfig, POLICY),
    "ppo": (PPOConfig, PPO),
    "sampling": (SamplingConfig, SAMPLING),
}

BASE: dict[str, object] = {
    "environment": {"id": "Pendulum-v1"},
    "actor": {"environments": 1},
    "policy": {"hidden_sizes": [16, 16]},
    # With these values, schedules have an effect and ratios reach their clips.
    "ppo": {"learning_rate": 3e-3, "epochs": 3, "minibatches": 2, "clip_range": 0.05, "entropy_coefficient": 0.1},
}
NEEDS: dict[str, dict[str, object]] = {
    # Its observations are integers, which have several encoders.
    "encoders": {"environment": {"id": "FrozenLake-v1"}},
    "memory_size": {"policy": {"memory": "gru"}},
    **{key: {"ppo": {"intrinsic_reward": INTRINSIC}} for key in ("intrinsic_coefficient", "intrinsic_discount")},
    # Its actions are moves on a board.
    "moves": {"environment": {"id": "Pieces-v0"}},
    "critic_only": {"environment": {"id": "Told-v0"}},
    "burn_in_steps": {"policy": {"memory": "gru"}},
    # The range is 2. Actors scale the actions, and the learner knows the tanh after them.
    "widest_range": {"policy": {"squash_actions": True}},
}
"""Further settings without which a setting can have no effect."""


def effects_of(config: Config) -> list[Any]:
    """Returns the effects of one batch halfway through a run on a learner with this configuration, and its plan."""
    env_id, policy = config.environment.id, config.policy
    learner = learner_of(config, spec_of(env_id), CPU)
    network = Network(hidden_sizes=(16, 16), memory=policy.memory, memory_size=policy.memory_size)
    # In the second window no episode begins with the first row, where any state would be zero.
    batch = make_batch(env_id, segments=6, fresh=3, network=network, burn_in=config.ppo.burn_in_steps, windows=2)
    outcome = learner.train(batch, 0.5)
    parameters = [tensor.tolist() for tensor in learner.policy.state_dict().values()]
    plan = plan_of(config, session=1, next_batch=0, seed=0)
    return [parameters, outcome.priorities.tolist(), outcome.updates, asdict(plan)]


@functools.cache
def effects_without(setting: str) -> list[Any]:
    """Returns the effects without the value of a setting, whose requirements are met; "" for one without any."""
    base = build(merge(BASE, NEEDS.get(setting, {})))
    first, repeated = effects_of(base), effects_of(base)
    # Effects must be reproducible, or any two would differ.
    assert first == repeated
    assert all(np.isfinite(each).all() for each in first[0] if each)
    return first


@pytest.mark.parametrize("section", TABLES)
def test_every_setting_is_in_a_table(section: str) -> None:
    model, table = TABLES[section]
    assert table.keys() == model.model_fields.keys() - RUN_SETTINGS


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section, (_, table) in TABLES.items() for key in table]
)
def test_a_setting_has_an_effect(section: str, key: str) -> None:
    changed = merge(merge(BASE, NEEDS.get(key, {})), {section: {key: TABLES[section][1][key]}})
    assert effects_of(build(changed)) != effects_without(key if key in NEEDS else "")


def attributes_read(node: ast.AST) -> set[str]:
    return {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def test_every_setting_of_the_other_sections_is_read() -> None:
    package = Path(configuration.__file__).parent
    trees = {path: ast.parse(path.read_text()) for path in package.parent.rglob("*.py")}
    # The configuration reads a setting in its checks too, which give it no effect. Its properties derive others.
    properties = [
        node
        for path, tree in trees.items()
        if path.is_relative_to(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "property" in map(ast.unparse, node.decorator_list)
    ]
    elsewhere = [tree for path, tree in trees.items() if not path.is_relative_to(package)]
    read = set[str]().union(*(attributes_read(node) for node in [*elsewhere, *properties]))
    others = [name for name in setting_names() if name.partition(".")[0] not in TABLES]
    assert {name for name in others if name.partition(".")[2] not in read} == set()
