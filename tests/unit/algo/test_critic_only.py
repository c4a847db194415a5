"""Parts of an observation that the critic reads and the actor does not, in every execution of gradient steps."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.policy_inputs import PolicyInputs
from penstock.algo.network import Network
from penstock.algo.policies import Inputs, Policy
from penstock.algo.spaces import check_spaces, shown_encoders
from penstock.config import Config, Execution
from penstock.errors import ConfigurationError
from penstock.types.spaces import BoxSpace, DiscreteSpace, Encoder, EnvironmentSpec
from tests.support.environments.tiny import spec_of
from tests.support.segments.spaces import nested
from tests.support.training.policies import fresh_policy, weights_of
from tests.support.training.training import make_batch, make_learner

NETWORK = Network(hidden_sizes=(16, 16), critic_only=("luck",))
OWN, PICTURE = BoxSpace("float32", (2,), (-1.0,) * 2, (1.0,) * 2), BoxSpace("uint8", (40, 40), (0.0,), (255.0,))


def logits_and_values(policy: Policy, luck: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what a policy of Told-v0 computes for the same `own` and other luck, <float32>[N, 2]."""
    own = torch.linspace(-1.0, 1.0, len(luck)).unsqueeze(1)
    with torch.no_grad():
        joint, values = policy.evaluate(Inputs((luck, own)))
    return joint.log_prob((torch.ones(len(luck), dtype=torch.int64),)), values


@pytest.mark.parametrize("execution", ["auto", "eager"])
def test_only_the_critic_learns_from_them(execution: Execution) -> None:
    learner = make_learner("Told-v0", network=NETWORK, execution=execution, learning_rate=1e-2)
    assert learner.execution == ("direct" if execution == "auto" else "eager")
    for number in range(20):
        learner.train(make_batch("Told-v0", segments=8, learner=learner, number=number), 0.0)
    hidden = learner.policy.get_parameter("actor.1.weight")[:, :2]
    assert torch.equal(hidden, torch.zeros_like(hidden))
    good, bad = torch.full((9, 2), 2.0), torch.full((9, 2), -2.0)
    (logits, high), (same, low) = logits_and_values(learner.policy, good), logits_and_values(learner.policy, bad)
    assert torch.equal(logits, same)
    assert (high > low + 0.5).all()


def test_a_line_names_them() -> None:
    assert shown_encoders(spec_of("Told-v0"), {}, ["luck"]).startswith(
        "encoders: luck flat for the critic only, own fla"
    )


def test_the_actor_begins_as_one_without_them() -> None:
    policy = fresh_policy(spec_of("Told-v0"), network=NETWORK)
    weight = policy.get_parameter("actor.1.weight").detach()
    np.testing.assert_allclose(weight[:, 2:].norm(dim=0), np.sqrt(2.0), rtol=1e-5)
    critic = policy.get_parameter("critic.1.weight").detach()
    np.testing.assert_allclose(critic.norm(dim=0), np.sqrt(2.0), rtol=1e-5)


def test_the_norm_of_the_gradient_is_without_them() -> None:
    learner = make_learner("Told-v0", network=NETWORK, epochs=1, minibatches=1, max_gradient_norm=1e9)
    learner.train(make_batch("Told-v0", segments=8, learner=learner), 0.0)
    gradients = [each.grad for each in learner.policy.parameters() if each.grad is not None]
    assert gradients and torch.equal(gradients[0][:, :2], torch.zeros(16, 2))


def test_a_trained_policy_acts_without_them() -> None:
    policy = fresh_policy(spec_of("Told-v0"), network=NETWORK)
    inputs, runner = PolicyInputs(policy.spec, policy.network), PolicyRunner(weights_of(policy, 1))
    own = np.linspace(-1.0, 1.0, 5, dtype=np.float32)[:, None]
    alone = inputs.rows({"own": own}, None)
    told = inputs.rows({"own": own, "luck": np.full((5, 2), 3.0, np.float32)}, None)
    assert alone.count == told.count == 5
    first = (torch.zeros(5, dtype=torch.int64),)
    ours, theirs = (runner.distribution(rows.leaves).log_prob(first) for rows in (alone, told))
    assert torch.equal(ours, theirs)
    assert inputs.rows({"own": own[0]}, None).shaped(np.zeros(1)) == 0.0
    with pytest.raises(ConfigurationError, match="own"):
        inputs.rows({"luck": np.zeros(2, np.float32)}, None)


@pytest.mark.parametrize(
    ("names", "encoders", "message"),
    [
        (
            ["sate"],
            {},
            "policy.critic_only names 'sate', which is not part of an observation of Game-v0; its parts are:",
        ),
        (
            ["camera"],
            {},
            "policy.critic_only names camera of Game-v0, whose encoder is image; only parts with the enco",
        ),
        (["own", "turn", "camera"], {"camera": "flat"}, "names all parts of an observation of Game-v0, so that the ac"),
    ],
)
def test_parts_that_can_not_be_hidden_are_refused(
    names: Sequence[str], encoders: dict[str, Encoder], message: str
) -> None:
    tree = nested((("own",), OWN), (("turn",), DiscreteSpace(3)), (("camera",), PICTURE))
    spec = EnvironmentSpec("Game-v0", tree, nested((("a",), DiscreteSpace(3)), (("b",), DiscreteSpace(2))))
    check_spaces(spec, encoders, critic_only=["own", "turn"])
    with pytest.raises(ConfigurationError, match=message):
        check_spaces(spec, encoders, critic_only=names)


@pytest.mark.parametrize("others", [{"trunk": "shared"}, {"memory": "gru"}, {"module": "a:B"}, {"moves": "board"}])
def test_settings_with_shared_or_own_layers_are_refused(others: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"share no layer and have no module of their own; set policy.trunk"):
        Config(policy={"critic_only": ["state"], **others})
