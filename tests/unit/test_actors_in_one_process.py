"""Several actors of a run in one process: they equal one actor, collect in their variants, and share by the plan."""

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from penstock.config import Config, build, merge
from penstock.types.replay import Batch
from penstock.types.run import Weights
from tests.support.tiers import gate_of
from tests.support.training.single_process import train

STEPS = 8


def configuration(**sections: Any) -> Config:
    """Returns a short run on Counting, whose step k has reward k in an episode of `length` steps."""
    base: dict[str, object] = {
        "environment": {"id": "tests.support.environments.tiny:Counting-v0"},
        "policy": {"hidden_sizes": [8], "normalise_observations": False, "normalise_returns": False},
        "ppo": {"epochs": 1, "minibatches": 1},
        "evaluation": {"interval_steps": 10**9, "episodes": 4},
        "sampling": {"batch_segments": 8, "fresh_fraction": 1.0},
    }
    return build(merge(base, sections))


def test_two_actors_train_the_same_policy_as_one() -> None:
    found = []
    for actors in (1, 2, 4):
        versions: list[bytes] = []
        config = configuration(
            run={"total_steps": 400},
            train={"actors": actors},
            actor={"environments": 4 // actors, "unroll_length": STEPS},
            sampling={"off_policy_degree": 0, "batch_segments": 8},
        )
        train(config, watch_weights=functools.partial(_keep, versions), actors=actors)
        found.append(versions)
    assert len(found[0]) > 5
    assert found[0] == found[1] == found[2]


def _keep(versions: list[bytes], weights: Weights) -> None:
    versions.append(weights.data)


def variants_in(batches: list[Batch]) -> Counter[int]:
    return Counter(slot for batch in batches for slot in batch.head.slots.tolist())


VARIED = {
    "environment": {"variants": [{"length": 2}, {"length": 40}]},
    "train": {"actors": 2},
    "actor": {"environments": 1, "unroll_length": STEPS},
}


@pytest.mark.parametrize(
    ("rule", "favoured"),
    # The rewards of the long episodes are 20 times larger, and so are their returns and their errors.
    gate_of(1, [("return", 0), ("equal", None), ("error", 1)]),
)
def test_actors_collect_in_their_variants_by_the_rule(rule: str, favoured: int | None) -> None:
    batches: list[Batch] = []
    config = configuration(run={"total_steps": 6_000}, **merge(VARIED, {"sampling": {"collection": rule}}))
    train(config, watch=batches.append, actors=2)
    for batch in batches[:3]:
        for row, slot in enumerate(batch.head.slots.tolist()):
            longest = int(batch.columns.column("reward")[row].max())
            assert longest == 2 if slot == 0 else longest > 2
    late = variants_in(batches[len(batches) // 2 :])
    shares = np.array([late[0], late[1]]) / late.total()
    if favoured is None:
        assert shares.tolist() == [0.5, 0.5]
    else:
        # The other one keeps a fifth of an equal share.
        assert shares[favoured] > 0.7
        assert shares[1 - favoured] >= 0.09
