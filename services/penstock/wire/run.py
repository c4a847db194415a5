"""Conversion of messages about joining, weights, evaluation and status."""

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from penstock.errors import InvalidSegment, Overloaded
from penstock.types import (
    ActorProgress,
    ActorReport,
    ActorState,
    Ages,
    Assignment,
    CoordinatorStatistics,
    Drops,
    EnvironmentFault,
    Episode,
    EvaluationResult,
    EvaluationSummary,
    EvaluationTask,
    LearningNumbers,
    MeanTimes,
    Notice,
    RunStatus,
    VariantReturns,
    VariantStatus,
    Wait,
    Weights,
)
from penstock.v1 import evaluation_pb2, run_pb2
from penstock.wire.block import MAX_PART_BYTES

MAX_WEIGHTS_BYTES = 2**32
MAX_NAME = 100
MAX_FAULT = 1_000
"""Longest text of an environment's fault in characters."""

_MOST_STEPS = 2**48
"""Largest count of an actor's steps or segments: a million steps per second for nine years."""

_MOST_SECONDS = 1e9
MAX_RETURN = 1e100
"""Largest magnitude of an episode's return. Means and deviations of any number of them are finite."""

_NO_STEP_BOUND = 2**31
_MAX_FAILURE_CHARACTERS = 1000


def encode_assignment(assignment: Assignment) -> run_pb2.Assignment:
    """Encodes an assignment."""
    return run_pb2.Assignment(
        slot=assignment.slot,
        incarnation=assignment.incarnation,
        environments=assignment.environments,
        token=assignment.token,
        seed=assignment.seed,
        replay_address=assignment.replay_address,
        variant=assignment.variant,
        temperature=assignment.temperature,
    )


def decode_assignment(message: run_pb2.Assignment) -> Assignment:
    """Decodes an assignment. Raises `InvalidSegment` for a temperature that is negative or not finite."""
    if not 0.0 <= message.temperature < math.inf:
        raise InvalidSegment(
            f"an assignment with the temperature {message.temperature:g}; it can't be negative or infinite"
        )
    return Assignment(
        slot=message.slot,
        incarnation=message.incarnation,
        environments=tuple(message.environments),
        token=message.token,
        seed=message.seed,
        replay_address=message.replay_address,
        variant=message.variant,
        temperature=message.temperature or 1.0,
    )


def encode_weights(weights: Weights) -> Iterator[run_pb2.WeightsChunk]:
    """Yields the chunks of the weights, in order."""
    for offset in range(0, len(weights.data), MAX_PART_BYTES):
        yield run_pb2.WeightsChunk(
            version=weights.version,
            total_bytes=len(weights.data),
            sha256=weights.sha256,
            offset=offset,
            data=weights.data[offset : offset + MAX_PART_BYTES],
        )


class WeightsAssembler:
    """Assembler of chunks into weights. One per stream."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._received = 0

    def add(self, chunk: run_pb2.WeightsChunk) -> Weights | None:
        """Takes the next chunk. Returns the weights once they are complete.

        Raises:
            InvalidSegment: The chunk is not the expected one, or the digest differs.
            Overloaded: The weights are too large.
        """
        if chunk.total_bytes > MAX_WEIGHTS_BYTES:
            raise Overloaded(f"weights of {chunk.total_bytes} bytes; at most {MAX_WEIGHTS_BYTES} are taken")
        if chunk.offset == 0:
            self._pieces, self._received = [], 0
        if chunk.offset != self._received or chunk.offset + len(chunk.data) > chunk.total_bytes:
            raise InvalidSegment(f"a chunk of weights at byte {chunk.offset}; byte {self._received} was due")
        self._pieces.append(chunk.data)
        self._received += len(chunk.data)
        if self._received < chunk.total_bytes:
            return None
        data = b"".join(self._pieces)
        self._pieces = []
        if hashlib.sha256(data).digest() != chunk.sha256:
            raise InvalidSegment(f"the weights of version {chunk.version} arrived with another SHA-256 than announced")
        return Weights(chunk.version, data, chunk.sha256)


def encode_report(report: ActorReport) -> run_pb2.ActorReport:
    """Encodes an actor's report."""
    return run_pb2.ActorReport(
        env_steps=report.env_steps,
        first_step_at_s=report.first_step_at_s,
        episodes=[
            run_pb2.Episode(
                episode_return=episode.episode_return,
                steps=episode.steps,
                environment=episode.environment,
                truncated=episode.truncated,
            )
            for episode in report.episodes
        ],
        environment_s=report.environment_s,
        policy_s=report.policy_s,
        waiting_s=report.waiting_s,
        building_s=report.building_s,
        segments=report.segments,
    )


def decode_report(message: run_pb2.ActorReport) -> ActorReport:
    """Decodes an actor's report. Raises `InvalidSegment` for impossible counts, times or returns."""
    for name in ("environment_s", "policy_s", "waiting_s", "building_s", "first_step_at_s"):
        seconds, most = getattr(message, name), math.inf if name == "first_step_at_s" else _MOST_SECONDS
        if not 0.0 <= seconds <= most or math.isinf(seconds):
            raise InvalidSegment(f"an actor reported {name} {seconds:g}; seconds are between 0 and {_MOST_SECONDS:g}")
    if max(message.env_steps, message.segments) > _MOST_STEPS:
        raise InvalidSegment(
            f"an actor reported {message.env_steps} steps and {message.segments} segments; at most {_MOST_STEPS} are"
            " taken"
        )
    for episode in message.episodes:
        if not abs(episode.episode_return) <= MAX_RETURN:
            raise InvalidSegment(
                f"an actor reported an episode return of {episode.episode_return:g}, which is not finite or above"
                f" {MAX_RETURN:g}"
            )
    return ActorReport(
        env_steps=message.env_steps,
        first_step_at_s=message.first_step_at_s,
        episodes=tuple(
            Episode(episode.episode_return, episode.steps, episode.environment, episode.truncated)
            for episode in message.episodes
        ),
        environment_s=message.environment_s,
        policy_s=message.policy_s,
        waiting_s=message.waiting_s,
        building_s=message.building_s,
        segments=message.segments,
    )


def encode_progress(progress: ActorProgress) -> run_pb2.ActorProgress:
    """Encodes an actor's progress."""
    return run_pb2.ActorProgress(**dataclasses.asdict(progress))


def decode_progress(message: run_pb2.ActorProgress) -> ActorProgress:
    """Decodes an actor's progress. Raises `InvalidSegment` for an impossible count or an unknown activity."""
    if message.steps > _MOST_STEPS or message.doing not in ("", "make", "reset", "step"):
        raise InvalidSegment(
            f"an actor's progress of {message.steps} steps, doing {message.doing[:MAX_NAME]!r}; at most {_MOST_STEPS}"
            " steps and make, reset or step are known"
        )
    return ActorProgress(**_present(message, ActorProgress))


def encode_fault(fault: EnvironmentFault) -> run_pb2.EnvironmentFault:
    """Encodes an environment's fault, truncated to the length that a server accepts."""
    return run_pb2.EnvironmentFault(text=fault.text[:MAX_FAULT], dropped=fault.dropped)


def decode_fault(message: run_pb2.EnvironmentFault) -> EnvironmentFault:
    """Decodes an environment's fault, in one line. Raises `InvalidSegment` for a text that is too long."""
    if len(message.text) > MAX_FAULT:
        raise InvalidSegment(f"an environment's fault of {len(message.text)} characters; at most {MAX_FAULT} are taken")
    return EnvironmentFault(_one_line(message.text), message.dropped)


def decode_name(message: run_pb2.Hello) -> str:
    """Decodes an actor's name, in one line; empty if it has none. Raises `InvalidSegment` if it is too long."""
    if len(message.name) > MAX_NAME:
        raise InvalidSegment(f"an actor with a name of {len(message.name)} characters; at most {MAX_NAME} are taken")
    return _one_line(message.name)


def _one_line(text: str) -> str:
    """Returns the text without line breaks and control characters, which a terminal would interpret."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def encode_task(task: EvaluationTask) -> Iterator[evaluation_pb2.RunEvaluationsResponse]:
    """Yields the messages of a task: its head, then its weights."""
    head = evaluation_pb2.EvaluationTask(
        id=task.id,
        version=task.weights.version,
        episodes=task.episodes,
        deterministic=task.deterministic,
        seed=task.seed,
        variants=task.variants,
        max_episode_steps=task.max_episode_steps,
        max_seconds=task.max_seconds if math.isfinite(task.max_seconds) else 0.0,
    )
    yield evaluation_pb2.RunEvaluationsResponse(task=head)
    for chunk in encode_weights(task.weights):
        yield evaluation_pb2.RunEvaluationsResponse(weights=chunk)


def decode_task(message: evaluation_pb2.EvaluationTask, weights: Weights) -> EvaluationTask:
    """Decodes a task from its head and weights. Raises `InvalidSegment` for an invalid time limit."""
    if not message.max_seconds >= 0.0:
        raise InvalidSegment(f"an evaluation of at most {message.max_seconds:g} seconds")
    return EvaluationTask(
        id=message.id,
        weights=weights,
        episodes=message.episodes,
        deterministic=message.deterministic,
        seed=message.seed,
        variants=max(1, message.variants),
        max_episode_steps=message.max_episode_steps or _NO_STEP_BOUND,
        max_seconds=message.max_seconds or math.inf,
    )


def encode_result(result: EvaluationResult) -> evaluation_pb2.EvaluationResult:
    """Encodes an evaluation's result."""
    return evaluation_pb2.EvaluationResult(**dataclasses.asdict(result))


def decode_result(message: evaluation_pb2.EvaluationResult, task: EvaluationTask) -> EvaluationResult:
    """Decodes the result of this task.

    Raises:
        InvalidSegment: The version or the number of episodes differs, or the values are impossible.
    """
    if message.version != task.weights.version:
        raise InvalidSegment(
            f"evaluation {task.id} is of version {task.weights.version}, and its result is of version {message.version}"
        )
    if not 0.0 <= message.seconds < math.inf:
        raise InvalidSegment(f"an evaluation of {message.seconds:g} seconds")
    returns, steps = tuple(message.returns), tuple(message.steps)
    if message.failure:
        failure = " ".join(message.failure.split())[:_MAX_FAILURE_CHARACTERS]
        return EvaluationResult(message.id, message.version, (), (), message.seconds, failure=failure)
    if len(returns) != task.episodes or len(steps) != task.episodes or message.unfinished > task.episodes:
        raise InvalidSegment(
            f"an evaluation of {len(returns)} returns and {len(steps)} lengths, {message.unfinished} of them"
            f" unfinished; {task.episodes} episodes were asked for"
        )
    for value in returns:
        if not abs(value) <= MAX_RETURN:
            raise InvalidSegment(
                f"an evaluation has an episode with a return of {value:g}; finite ones of at most {MAX_RETURN:g} in"
                " magnitude are taken"
            )
    return EvaluationResult(
        message.id, message.version, returns, steps, message.seconds, message.unfinished, message.out_of_time
    )


def encode_status(status: RunStatus) -> run_pb2.GetRunStatusResponse:
    """Encodes a run's status."""
    values = {field.name: getattr(status, field.name) for field in dataclasses.fields(RunStatus)}
    for name in ("last_evaluation", "best_evaluation"):
        if values[name] is not None:
            values[name] = _encode_evaluation(values[name])
    values["variants"] = [run_pb2.VariantStatus(**dataclasses.asdict(variant)) for variant in status.variants]
    if status.coordinator is not None:
        values["coordinator"] = run_pb2.CoordinatorStatistics(**dataclasses.asdict(status.coordinator))
    values["notices"] = [run_pb2.Notice(number=notice.number, text=notice.text) for notice in status.notices]
    values["actor_states"] = [run_pb2.ActorState(**dataclasses.asdict(state)) for state in status.actor_states]
    return run_pb2.GetRunStatusResponse(**values)


def decode_status(message: run_pb2.GetRunStatusResponse) -> RunStatus:
    """Decodes a run's status."""
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(RunStatus)}
    values["coordinator"] = _decode_coordinator(message.coordinator) if message.HasField("coordinator") else None
    for name in ("return_mean", "remaining_s", "last_evaluation", "best_evaluation"):
        if not message.HasField(name):
            values[name] = None
        elif name.endswith("evaluation"):
            values[name] = _decode_evaluation(values[name])
    values["variants"] = tuple(
        VariantStatus(
            variant.arguments, variant.episodes, variant.return_mean if variant.HasField("return_mean") else None
        )
        for variant in message.variants
    )
    values["notices"] = tuple(Notice(notice.number, notice.text) for notice in message.notices)
    values["actor_states"] = tuple(ActorState(**_present(state, ActorState)) for state in message.actor_states)
    return RunStatus(**values)


def _encode_evaluation(evaluation: EvaluationSummary) -> run_pb2.EvaluationSummary:
    values = {field.name: getattr(evaluation, field.name) for field in dataclasses.fields(EvaluationSummary)}
    values["variants"] = [run_pb2.VariantReturns(**dataclasses.asdict(variant)) for variant in evaluation.variants]
    return run_pb2.EvaluationSummary(**values)


def _decode_evaluation(message: run_pb2.EvaluationSummary) -> EvaluationSummary:
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(EvaluationSummary)}
    values["variants"] = tuple(
        VariantReturns(variant.episodes, variant.return_mean, variant.return_std) for variant in message.variants
    )
    return EvaluationSummary(**values)


def _decode_coordinator(message: run_pb2.CoordinatorStatistics) -> CoordinatorStatistics:
    values = _present(message, CoordinatorStatistics)
    for name, kind in (("lag", Ages), ("staleness", Ages), ("last", LearningNumbers), ("recent", LearningNumbers)):
        if values[name] is not None:
            values[name] = kind(**_present(values[name], kind))
    values["times"] = MeanTimes(**_present(message.times, MeanTimes))
    values["drops"] = Drops(**_present(message.drops, Drops))
    values["waits"] = tuple(Wait(**_present(wait, Wait)) for wait in message.waits)
    return CoordinatorStatistics(**values)


def _present(message: Message, kind: type[Any]) -> dict[str, Any]:
    """Returns a message's values under the names of a dataclass's fields, with None for absent optional fields."""
    absent = {
        field.name for field in message.DESCRIPTOR.fields if field.has_presence and not message.HasField(field.name)
    }
    names = (field.name for field in dataclasses.fields(kind))
    return {name: None if name in absent else getattr(message, name) for name in names}
