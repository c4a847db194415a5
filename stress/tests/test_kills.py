"""Short form of `make stress-kills`: a kill of each service of a run, with a ledger of plain clients."""

from pathlib import Path

import numpy as np
import pytest

from penstock.runs.folder import LEARNER
from stress.kills import Killer, play
from stress.plain_actor import ENVIRONMENTS, STEPS, numbered, schema_of
from stress.services import EVALUATOR, Form, Services

pytestmark = pytest.mark.nightly

SEED = 4
"""The victims of its first kills are a learner, a replay service and an actor."""


def test_kills_of_a_run_lose_and_double_no_acknowledged_segment() -> None:
    outcome = play(Form("two shards", shards=2), kills=3, seconds=900.0, seed=SEED, show=print)
    assert outcome.violations == []
    assert outcome.kills == {"replay": 1, "actor": 1, LEARNER: 1}
    assert sorted(outcome.accounts) == ["replay-0", "replay-1"]
    assert all(found.acknowledged for found in outcome.accounts.values())
    assert outcome.version > 3


def test_ten_kills_hit_every_service(tmp_path: Path) -> None:
    killer = Killer(Services(tmp_path, Form("plain")), seed=0)
    victims = [killer.victim() for _ in range(10)]
    assert {each: victims.count(each) for each in victims} == {"replay": 3, LEARNER: 3, "actor": 3, EVALUATOR: 1}


def test_no_two_observations_of_plain_actors_have_the_same_number() -> None:
    schema = schema_of(None)
    numbers = set()
    for actor in range(2):
        for window in range(3):
            observations = numbered(schema, actor, window).column("observation")[:, :-1, -2:]
            numbers |= {tuple(each) for each in observations.reshape(-1, 2).tolist()}
    assert len(numbers) == 2 * 3 * ENVIRONMENTS * STEPS
    # Consecutive windows are one history.
    first, second = (numbered(schema, 0, window).column("observation") for window in range(2))
    np.testing.assert_array_equal(first[:, -1, -2:], second[:, 0, -2:])
