"""Messages of actors and evaluators are decoded, and impossible numbers in them are refused."""

import dataclasses
import hashlib
import math
from typing import Any

import pytest

from penstock.errors import InvalidSegment
from penstock.types.evaluation import EvaluationResult, EvaluationTask, InfoValues
from penstock.types.location import Place
from penstock.types.run import ActorReport, Assignment, Episode, Weights
from penstock.types.statistics import Timing
from penstock.v1 import run_pb2
from penstock.wire.run import (
    JoinReader,
    decode_assignment,
    decode_report,
    decode_result,
    decode_task,
    encode_assignment,
    encode_join_replay,
    encode_report,
    encode_result,
    encode_task,
)

WEIGHTS = Weights(4, b"weights", hashlib.sha256(b"weights").digest())
TASK = EvaluationTask(9, WEIGHTS, episodes=2, deterministic=True, seed=3)
ASSIGNMENT = Assignment(slot=1, incarnation=2, environments=(3, 4), token=b"5", seed=6)
RESULT = EvaluationResult(9, 4, (1.0, 2.0), (3, 4), 0.5, 1)


@pytest.mark.parametrize("name", ["env_steps", "segments"])
def test_a_report_of_more_steps_or_segments_than_an_actor_can_take_is_refused(name: str) -> None:
    message = encode_report(ActorReport(0, 0.0, (), Timing()))
    setattr(message, name, 2**48)
    assert getattr(decode_report(message), name) == 2**48
    setattr(message, name, 2**48 + 1)
    with pytest.raises(InvalidSegment, match="the maximum is 281474976710656"):
        decode_report(message)


def test_an_assignment_without_a_temperature_has_temperature_1() -> None:
    message = encode_assignment(dataclasses.replace(ASSIGNMENT, temperature=0.5))
    assert decode_assignment(message).temperature == 0.5
    message.ClearField("temperature")
    assert decode_assignment(message) == ASSIGNMENT
    assert ASSIGNMENT.temperature == 1.0


def test_an_assignment_carries_the_place_of_replay_also_for_older_actors() -> None:
    place = Place(("node1:7431", "[fd00::1]:7431"), identity=2**63)
    message = encode_assignment(dataclasses.replace(ASSIGNMENT, replay=place), "node1:7431")
    assert decode_assignment(message).replay == place
    assert message.replay_address == "node1:7431"
    # An older learner.
    message.ClearField("replay")
    assert decode_assignment(message).replay == Place(("node1:7431",))


def test_a_place_whose_address_is_none_is_refused() -> None:
    message = encode_join_replay(Place(("node1",)))
    with pytest.raises(InvalidSegment, match="an address of the replay service must be host:port"):
        JoinReader().add(message)


def test_a_moved_replay_service_does_not_change_the_assignment() -> None:
    assert dataclasses.replace(ASSIGNMENT, replay=Place(("node1:7431",))) == ASSIGNMENT


def test_a_task_and_its_result_survive_encoding_and_decoding() -> None:
    head, *_ = encode_task(TASK)
    assert decode_task(head.task, WEIGHTS) == TASK
    assert decode_result(encode_result(RESULT), TASK) == RESULT


@pytest.mark.parametrize(
    ("change", "message_text"),
    [
        ({"version": 5}, "its result has version 5"),
        ({"unfinished": 3}, "3 of them unfinished; 2 episodes"),
        ({"returns": (1.0,)}, "1 returns and 2 lengths"),
        ({"steps": (1, 2, 3)}, "2 returns and 3 lengths"),
        ({"returns": (1.0, 1e101)}, "a return of 1e\\+101"),
        ({"seconds": -1.0}, "-1 seconds"),
    ],
)
def test_an_impossible_result_is_refused(change: dict[str, Any], message_text: str) -> None:
    with pytest.raises(InvalidSegment, match=message_text):
        decode_result(encode_result(dataclasses.replace(RESULT, **change)), TASK)


def test_the_chunks_of_a_task_contain_its_weights() -> None:
    _, *chunks = encode_task(TASK)
    assert run_pb2.WeightsChunk(version=4, total_bytes=7, sha256=WEIGHTS.sha256, data=b"weights") == chunks[0].weights


def test_numbers_of_infos_are_decoded_and_impossible_ones_refused() -> None:
    episodes = (Episode(1.0, 5, 0, truncated=False, info=(1.0, math.nan)),)
    report = ActorReport(5, 1.0, episodes, Timing(), info_metrics=("success", "x"))
    found = decode_report(encode_report(report))
    assert found.info_metrics == ("success", "x") and str(found.episodes) == str(episodes)
    result = dataclasses.replace(RESULT, info=(InfoValues("success", (0.0, math.nan)),))
    assert str(decode_result(encode_result(result), TASK)) == str(result)

    for info in ((1.0,), (1.0, 2e100), (1.0, math.inf)):
        wrong = dataclasses.replace(report, episodes=(dataclasses.replace(episodes[0], info=info),))
        with pytest.raises(InvalidSegment, match=r"infos; expected 2|from an info"):
            decode_report(encode_report(wrong))
    many = dataclasses.replace(report, episodes=(), info_metrics=("x",) * 17)
    with pytest.raises(InvalidSegment, match="17 keys of infos"):
        decode_report(encode_report(many))
    short = dataclasses.replace(RESULT, info=(InfoValues("success", (0.0,)),))
    with pytest.raises(InvalidSegment, match="1 values of infos; expected 2"):
        decode_result(encode_result(short), TASK)
