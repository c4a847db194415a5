"""Two ranks of a learner with a GPU each, over NCCL, compared with one on the same batches."""

from typing import Any

import pytest
import torch

from penstock.acting.values.spaces import segment_schema
from penstock.config import Config, Execution
from penstock.learning.run.assembly import learner_of
from penstock.learning.step.batches import to_tensors
from tests.support.environments.tiny import spec_of
from tests.support.services.other_ranks import led
from tests.support.services.processes import end_of
from tests.support.training.training import collect_batch, numbers_of

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")

SEGMENTS, STEPS = 7, 16
KINDS: dict[str, dict[str, Any]] = {
    "small": {},
    "LSTM": {"memory": "lstm", "memory_size": 16},
}


@pytest.mark.parametrize("execution", ["eager", pytest.param("compiled", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_two_gpus_learn_what_one_learns(kind: str, execution: Execution) -> None:
    config = Config(
        environment={"id": "CartPole-v1"},
        policy={"hidden_sizes": [32, 32], **KINDS[kind]},
        learner={"device": "cuda", "execution": execution},
        actor={"unroll_length": STEPS, "environments": SEGMENTS},
        sampling={"batch_segments": SEGMENTS, "fresh_fraction": 1.0},
        ppo={"epochs": 2, "minibatches": 3, "target_kl": None},
    )
    spec, device = spec_of("CartPole-v1"), torch.device("cuda", 0)
    with led(config) as ranks:
        one, learner = learner_of(config, spec, device), learner_of(config, spec, device, ranks.lead.ranks)
        schema = segment_schema(spec, STEPS, memory=learner.policy.memory_shape, burn_in=0)
        ranks.lead.open(config, schema, learner)
        for number in range(5, 8):
            batch = collect_batch(
                segments=SEGMENTS,
                unroll_length=STEPS,
                fresh=4,
                network=one.policy.network,
                windows=number - 4,
                number=number,
            )
            ranks.link.send(batch)
            ranks.link.train(batch, 0.0)
            outcome, expected = (each.train(to_tensors(batch, device), 0.0) for each in (learner, one))
            assert numbers_of(outcome) == pytest.approx(numbers_of(expected), rel=1e-2, abs=1e-4)
        torch.testing.assert_close(learner.parameters, one.parameters, rtol=1e-3, atol=2e-5)
        ranks.link.close()
        assert end_of(ranks.others[0]).code == 0
