"""Two hosts with a slow, lossy, cut or half-cut link between actors, learners, evaluators and their services."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.services.link import unavailable
from tests.support.services.link_stories import (
    CUTS,
    Event,
    Seen,
    actors_and_replay,
    captured_log,
    learner_and_replay,
    run_and_its_learner,
)

Story = Callable[[Path, list[Event]], Seen]

STORIES: dict[str, Story] = {
    "three actors and the learner": lambda folder, events: run_and_its_learner(folder),
    "three actors and the replay service": actors_and_replay,
    **{f"the learner and the replay service, {cut}": partial(learner_and_replay, cut=cut) for cut in CUTS},
}
"""Stories that run at the same time, because they mostly wait."""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    if reason := unavailable():
        pytest.skip(reason)
    with captured_log() as events, ThreadPoolExecutor(len(STORIES)) as pool:
        futures = {
            name: pool.submit(story, tmp_path_factory.mktemp("links"), events) for name, story in STORIES.items()
        }
    return {name: future.result() for name, future in futures.items()}


@pytest.fixture(params=STORIES)
def seen(request: pytest.FixtureRequest, played: dict[str, Seen]) -> Seen:
    return played[request.param]


def test_every_acknowledged_segment_is_stored_once_and_in_order(seen: Seen) -> None:
    assert seen.violations == []
    assert seen.checked > 0


def test_the_next_batch_arrives_soon_after_a_link_is_restored(seen: Seen) -> None:
    assert seen.durations
    assert [each for each in seen.durations if each.seconds > each.bound.seconds] == []


def test_a_slow_or_lossy_link_is_not_mistaken_for_a_lost_peer(seen: Seen) -> None:
    assert seen.early == []


def test_both_sides_log_each_loss_and_return_of_the_other_once(seen: Seen) -> None:
    assert seen.lines
    for side, lines in seen.lines.items():
        if side.endswith("client"):
            assert lines == ["trying again", "waiting for service", "service reached"], side
        else:
            gone, back = lines
            assert gone.endswith(" left"), side
            assert back.endswith((" returned", " joined")), side
