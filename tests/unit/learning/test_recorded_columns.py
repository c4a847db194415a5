"""A learner refuses segments that lack what its policy trains on, before it trains on any."""

import dataclasses

import pytest

from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.errors import SchemaMismatch
from penstock.learning.step.batches import check_schema
from tests.support.environments.tiny import spec_of

SPEC = dataclasses.replace(spec_of("CartPole-v1"), mask_bits=2)


@pytest.mark.parametrize(
    ("recorded", "mask_bits", "named"),
    [
        ({"memory": (2, 8), "burn_in": 3}, 2, "states of policy.memory of shape (1, 8)"),
        ({"memory": (1, 16), "burn_in": 3}, 2, "states of policy.memory of shape (1, 8)"),
        ({"memory": None}, 2, "states of policy.memory of shape (1, 8)"),
        ({"memory": (1, 8), "burn_in": 2}, 2, "rows of ppo.burn_in_steps: 3, and the actors' segments have 2"),
        ({"memory": (1, 8), "burn_in": 3}, 0, "bytes of action masks: 1, and the actors' segments have 0"),
    ],
)
def test_other_columns_than_the_policy_needs_are_refused(
    recorded: dict[str, object], mask_bits: int, named: str
) -> None:
    policy = Policy(SPEC, Network(memory="gru", memory_size=8))
    schema = segment_schema(dataclasses.replace(SPEC, mask_bits=mask_bits), 16, **recorded)  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatch) as refusal:
        check_schema(schema, policy, 3)
    assert named in str(refusal.value)


def test_the_columns_of_the_same_settings_are_accepted() -> None:
    policy = Policy(SPEC, Network(memory="gru", memory_size=8))
    check_schema(segment_schema(SPEC, 16, memory=(1, 8), burn_in=3), policy, 3)
    check_schema(segment_schema(spec_of("CartPole-v1"), 16), Policy(spec_of("CartPole-v1"), Network()), 0)
