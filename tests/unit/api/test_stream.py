"""The iteration of a stream, over functions that pass records as training does."""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.api.run import TrainedRun
from penstock.api.stream import Stream
from penstock.api.training import Follower, Record
from penstock.runs.summary import Summary

SUMMARY = Path(__file__).parents[2] / "compatibility" / penstock.__version__ / "run" / "summary.json"
PATIENCE_S = 60.0


def passing(records: int, looks: int = 10**9) -> tuple[Callable[[Follower], TrainedRun], list[bool]]:
    """Returns a function that passes this many records, one at each look, and whether each look was told to end."""
    answers: list[bool] = []

    def train(follow: Follower) -> TrainedRun:
        deadline = time.monotonic() + PATIENCE_S
        for look in range(looks):
            new: list[Record] = [{"kind": "training", "env_steps": look}] if look < records else []
            answers.append(follow(new))
            if answers[-1]:
                break
            assert time.monotonic() < deadline
        summary = Summary.read(SUMMARY)
        return TrainedRun.of(dataclasses.replace(summary, stopped="callback" if answers[-1] else "total_steps"))

    return train, answers


def test_a_stream_yields_every_record_and_has_the_run_at_its_end() -> None:
    train, answers = passing(5, looks=7)
    stream = Stream(train)
    with pytest.raises(penstock.ConfigurationError, match="has not ended; iterate it"):
        _ = stream.run
    assert [record["env_steps"] for record in stream] == [0, 1, 2, 3, 4]
    assert stream.run.stopped == "total_steps" and answers == [False] * 7
    with pytest.raises(penstock.ConfigurationError, match=r"a stream is iterated once; .*resume=True"):
        iter(stream)


def test_a_loop_that_is_left_ends_the_run_at_its_next_look() -> None:
    train, answers = passing(3)
    stream = Stream(train)
    for record in stream:
        if record["env_steps"] == 1:
            break
    # Without further records: the run may be waiting for its actors.
    assert stream.run.stopped == "callback" and answers[-1]
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-stream"]


def test_an_exception_of_the_loop_ends_the_run_and_passes() -> None:
    train, answers = passing(3)
    stream = Stream(train)
    with pytest.raises(ZeroDivisionError):
        for record in stream:
            _ = 1 / record["env_steps"]
    assert stream.run.stopped == "callback" and answers[-1]


def test_an_error_of_the_run_passes_after_its_records() -> None:
    def train(follow: Follower) -> TrainedRun:
        follow([{"kind": "training", "env_steps": 1}])
        raise penstock.PenstockError("actor 0 died too often")

    stream, seen = Stream(train), []
    with pytest.raises(penstock.PenstockError, match="died too often"):
        seen += list(stream)
    with pytest.raises(penstock.PenstockError, match="died too often"):
        _ = stream.run


def test_a_stream_that_is_closed_before_its_first_record_is_an_aborted_start() -> None:
    train, _ = passing(0)
    stream = Stream(train)
    iter(stream)
    stream.close()
    with pytest.raises(KeyboardInterrupt):
        _ = stream.run


def test_a_wrong_setting_is_refused_as_by_train() -> None:
    with pytest.raises(penstock.ConfigurationError, match=r"did you mean ppo\.learning_rate\?"):
        next(iter(penstock.stream("CartPole-v1", learnin_rate=1)))
