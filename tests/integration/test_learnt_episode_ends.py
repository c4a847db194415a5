"""The values that a run learns are those of the correct treatment of ends of episodes, through all services.

The run replays old segments, and its actor is ahead of the learner, so V-trace and staging are part of the test.
"""

from pathlib import Path

import pytest

from examples.episode_ends import TOLERANCE, Treatment
from tests.support.environments.chain_values import learn

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("same_step", [False, True], ids=["next-step", "same-step"])
def test_values_do_not_depend_on_where_episodes_are_truncated(tmp_path: Path, same_step: bool) -> None:
    report = learn(tmp_path / "run", same_step=same_step)
    assert report.treatment is Treatment.CORRECT, str(report)
    # Every target of the correct treatment is exact, so a small network learns the values without noise.
    assert report.errors[Treatment.CORRECT] < TOLERANCE / 4.0
