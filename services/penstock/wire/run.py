"""Conversion of messages about joining, weights, evaluation and status."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from penstock.errors import InvalidSegment, Overloaded, RunFinished
from penstock.types.evaluation import EvaluationResult, EvaluationTask, EvaluatorHello
from penstock.types.location import Place
from penstock.types.records import plain, record_of
from penstock.types.run import (
    MOST_INFO_METRICS,
    ActorProgress,
    ActorReport,
    Assignment,
    EnvironmentFault,
    Episode,
    Hello,
    LostPlace,
    PlayedVariant,
    Weights,
)
from penstock.types.statistics import Timing
from penstock.types.status import RunStatus
from penstock.v1 import evaluation_pb2, run_pb2
from penstock.wire.block import MAX_PART_BYTES
from penstock.wire.fields import decoded, encoded, values_of
from penstock.wire.location import decode_location, decode_place, encode_location, encode_place
from penstock.wire.schema import decode_schema, encode_schema
from penstock.wire.spaces import decode_environment, encode_environment
from penstock.wire.variants import decode_arguments

MAX_WEIGHTS_BYTES = 2**32
MAX_NAME = 100
MAX_WINDOW_ENVIRONMENTS = 4096
MAX_FAULT = 1_000
"""Longest text of an environment's fault in characters."""

_MOST_STEPS = 2**48
"""Largest count of an actor's steps or segments: a million steps per second for nine years."""

_MOST_SECONDS = 1e9
MAX_RETURN = 1e100
"""Largest magnitude of an episode's return. Mean and deviation of any number of them are finite in float64."""

_NO_STEP_BOUND = 2**31
_MAX_FAILURE_CHARACTERS = 1000


def encode_assignment(assignment: Assignment, replay_address: str = "") -> run_pb2.Assignment:
    """Encodes an assignment. `replay_address` is for older actors, which do not read its replay place."""
    return run_pb2.Assignment(replay_address=replay_address, **plain(assignment))


def decode_assignment(message: run_pb2.Assignment) -> Assignment:
    """Decodes an assignment. Raises `InvalidSegment` for a temperature out of range or a wrong address."""
    if not 0.0 <= message.temperature < math.inf:
        raise InvalidSegment(
            f"the temperature of an assignment is {message.temperature:g}; it must be finite and at least 0"
        )
    values = values_of(message)
    address = values.pop("replay_address")
    # An older learner names no more than an address.
    place = decode_place(message.replay) if message.HasField("replay") else Place((address,))
    values |= {"replay": plain(place), "temperature": message.temperature or 1.0}
    _check_variants(message.variants)
    return record_of(Assignment, values)


def _check_variants(variants: Iterable[run_pb2.PlayedVariant]) -> None:
    for each in variants:
        if not 0.0 < each.share < math.inf:
            raise InvalidSegment(f"the share of variant {each.number} is {each.share:g}; it must be finite and above 0")
        decode_arguments(each.arguments)


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

        Raises `InvalidSegment` if the chunk is not the expected one or the digest differs, `Overloaded` for too large
        weights.
        """
        if chunk.total_bytes > MAX_WEIGHTS_BYTES:
            raise Overloaded(f"weights of {chunk.total_bytes} bytes; the maximum is {MAX_WEIGHTS_BYTES}")
        if chunk.offset == 0:
            self._pieces, self._received = [], 0
        if chunk.offset != self._received or chunk.offset + len(chunk.data) > chunk.total_bytes:
            raise InvalidSegment(
                f"got a chunk of weights at byte {chunk.offset}, expected one at byte {self._received}"
            )
        self._pieces.append(chunk.data)
        self._received += len(chunk.data)
        if self._received < chunk.total_bytes:
            return None
        data = b"".join(self._pieces)
        self._pieces = []
        if hashlib.sha256(data).digest() != chunk.sha256:
            raise InvalidSegment(
                f"the SHA-256 of the weights of version {chunk.version} differs from the announced one"
            )
        return Weights(chunk.version, data, chunk.sha256)


def encode_report(report: ActorReport) -> run_pb2.ActorReport:
    """Encodes an actor's report, whose timing the message contains field by field."""
    values = plain(report)
    return run_pb2.ActorReport(**values.pop("timing"), **values)


def decode_report(message: run_pb2.ActorReport) -> ActorReport:
    """Decodes an actor's report. Raises `InvalidSegment` for impossible counts, times or returns."""
    # Field by field, because a fast actor reports a thousand episodes per second.
    names = tuple(message.info_metrics)
    report = ActorReport(
        env_steps=message.env_steps,
        first_step_at_s=message.first_step_at_s,
        episodes=tuple(
            Episode(
                each.episode_return,
                each.steps,
                each.environment,
                each.truncated,
                tuple(each.info) if names else (),
                each.variant if each.HasField("variant") else None,
            )
            for each in message.episodes
        ),
        timing=Timing(*(getattr(message, name) for name in Timing.__slots__)),
        segments=message.segments,
        late_steps=message.late_steps,
        info_metrics=names,
    )
    _check_names(names)
    for name, seconds in {**plain(report.timing), "first_step_at_s": report.first_step_at_s}.items():
        most = math.inf if name == "first_step_at_s" else _MOST_SECONDS
        if not 0.0 <= seconds <= most or math.isinf(seconds):
            raise InvalidSegment(f"an actor reported {name} {seconds:g}; seconds are between 0 and {_MOST_SECONDS:g}")
    if max(report.env_steps, report.segments, report.late_steps) > _MOST_STEPS:
        raise InvalidSegment(
            f"an actor reported {report.env_steps} steps, {report.segments} segments and {report.late_steps} late"
            f" steps; the maximum is {_MOST_STEPS}"
        )
    for episode in report.episodes:
        if not abs(episode.episode_return) <= MAX_RETURN:
            raise InvalidSegment(
                f"an actor reported an episode return of {episode.episode_return:g}, which is not finite or above"
                f" {MAX_RETURN:g}"
            )
        if names:
            _check_info(episode.info, len(names))
    return report


def _check_names(names: Sequence[str]) -> None:
    if len(names) > MOST_INFO_METRICS or any(len(name) > MAX_NAME for name in names):
        raise InvalidSegment(
            f"{len(names)} keys of infos, the longest of {max(map(len, names))} characters; the maximum is"
            f" {MOST_INFO_METRICS} keys of {MAX_NAME} characters"
        )


def _check_info(values: Sequence[float], expected: int) -> None:
    if len(values) != expected:
        raise InvalidSegment(f"{len(values)} values of infos; expected {expected}")
    for value in values:
        if abs(value) > MAX_RETURN:
            raise InvalidSegment(f"a value of {value:g} from an info; its magnitude must be at most {MAX_RETURN:g}")


def _decode_progress(message: run_pb2.ActorProgress) -> ActorProgress:
    """Decodes an actor's progress. Raises `InvalidSegment` for an impossible count or an unknown activity."""
    if message.steps > _MOST_STEPS or message.doing not in ("", "make", "reset", "step"):
        raise InvalidSegment(
            f"an actor's progress of {message.steps} steps, doing {message.doing[:MAX_NAME]!r}; expected at most"
            f" {_MOST_STEPS} steps, and make, reset or step"
        )
    return decoded(ActorProgress, message)


def _decode_fault(message: run_pb2.EnvironmentFault) -> EnvironmentFault:
    """Decodes an environment's fault, in one line. Raises `InvalidSegment` for a text that is too long."""
    if len(message.text) > MAX_FAULT:
        raise InvalidSegment(f"an environment's fault has {len(message.text)} characters; the maximum is {MAX_FAULT}")
    return EnvironmentFault(_one_line(message.text), message.dropped)


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
        untimed_episode_steps=task.untimed_episode_steps,
        max_seconds=task.max_seconds if math.isfinite(task.max_seconds) else 0.0,
        run=task.run,
        played=[plain(each) for each in task.played],
    )
    yield evaluation_pb2.RunEvaluationsResponse(task=head)
    for chunk in encode_weights(task.weights):
        yield evaluation_pb2.RunEvaluationsResponse(weights=chunk)


def decode_task(message: evaluation_pb2.EvaluationTask, weights: Weights) -> EvaluationTask:
    """Decodes a task from its head and weights. Raises `InvalidSegment` for an invalid time limit or variant."""
    if not message.max_seconds >= 0.0:
        raise InvalidSegment(f"an evaluation of at most {message.max_seconds:g} seconds")
    values = values_of(message)
    del values["version"]
    values["variants"] = max(1, message.variants)
    for bound in ("max_episode_steps", "untimed_episode_steps"):
        values[bound] = values[bound] or _NO_STEP_BOUND
    values["max_seconds"] = message.max_seconds or math.inf
    _check_variants(message.played)
    values["played"] = tuple(decoded(PlayedVariant, each) for each in message.played)
    return EvaluationTask(weights=weights, **values)


def encode_result(result: EvaluationResult) -> evaluation_pb2.EvaluationResult:
    """Encodes an evaluation's result."""
    return encoded(evaluation_pb2.EvaluationResult, result)


def decode_result(message: evaluation_pb2.EvaluationResult, task: EvaluationTask) -> EvaluationResult:
    """Decodes the result of this task. Raises `InvalidSegment` for another version or impossible values."""
    if message.version != task.weights.version:
        raise InvalidSegment(
            f"evaluation {task.id} has version {task.weights.version}, but its result has version {message.version}"
        )
    if not 0.0 <= message.seconds < math.inf:
        raise InvalidSegment(f"an evaluation of {message.seconds:g} seconds")
    result = decoded(EvaluationResult, message)
    if result.failure:
        failure = " ".join(result.failure.split())[:_MAX_FAILURE_CHARACTERS]
        return EvaluationResult(result.id, result.version, (), (), result.seconds, failure=failure)
    counts = {len(result.returns), len(result.steps)}
    if counts != {task.episodes} or result.unfinished > task.episodes:
        raise InvalidSegment(
            f"an evaluation of {len(result.returns)} returns and {len(result.steps)} lengths, {result.unfinished} of"
            f" them unfinished; {task.episodes} episodes were requested"
        )
    if not all(1 <= steps <= task.max_episode_steps for steps in result.steps):
        raise InvalidSegment(
            f"an evaluation has episodes of {min(result.steps)} to {max(result.steps)} steps; each has from 1 to"
            f" {task.max_episode_steps}"
        )
    for value in result.returns:
        if not abs(value) <= MAX_RETURN:
            raise InvalidSegment(
                f"an evaluation has an episode with a return of {value:g}; its magnitude must be at most {MAX_RETURN:g}"
            )
    _check_names([each.name for each in result.info])
    for each in result.info:
        _check_info(each.values, task.episodes)
    return result


def encode_status(status: RunStatus) -> run_pb2.GetRunStatusResponse:
    """Encodes a run's status."""
    return encoded(run_pb2.GetRunStatusResponse, status)


def decode_status(message: run_pb2.GetRunStatusResponse) -> RunStatus:
    """Decodes a run's status."""
    return decoded(RunStatus, message)


# Requests and responses of the streams


def encode_contract(number: int) -> bytes:
    """Encodes the contract number, whose field is the same in the messages of all streams."""
    return run_pb2.JoinRequest(contract=number).SerializeToString()


def encode_hello(hello: Hello) -> run_pb2.JoinRequest:
    """Encodes an actor's introduction. A name that is longer than a server accepts is cut, and ends with a digest."""
    return run_pb2.JoinRequest(
        hello=run_pb2.Hello(
            schema=encode_schema(hello.schema),
            environment=encode_environment(hello.spec),
            environments=hello.environments,
            name=_short_name(hello.name),
            token=hello.token,
            lost=None if hello.lost is None else encoded(run_pb2.LostPlace, hello.lost),
            location=encode_location(hello.location),
            run=hello.run,
        )
    )


def _short_name(name: str) -> str:
    """Returns a name of at most `MAX_NAME` characters, which differs for different names: the learner counts by it."""
    if len(name) <= MAX_NAME:
        return name
    digest = f"-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"
    return name[: MAX_NAME - len(digest)] + digest


def decode_hello(message: run_pb2.JoinRequest) -> Hello:
    """Decodes an actor's introduction. Raises `InvalidSegment` if it is another message or has invalid values."""
    if message.WhichOneof("message") != "hello":
        raise InvalidSegment("a join stream must begin with `hello`")
    hello = message.hello
    if not 1 <= hello.environments <= MAX_WINDOW_ENVIRONMENTS:
        raise InvalidSegment(f"an actor steps 1 to {MAX_WINDOW_ENVIRONMENTS} environments, got {hello.environments}")
    if len(hello.name) > MAX_NAME:
        raise InvalidSegment(f"the name of an actor has {len(hello.name)} characters; the maximum is {MAX_NAME}")
    return Hello(
        spec=decode_environment(hello.environment),
        schema=decode_schema(hello.schema),
        environments=hello.environments,
        name=_one_line(hello.name),
        token=hello.token,
        lost=decoded(LostPlace, hello.lost) if hello.HasField("lost") else None,
        location=decode_location(hello.location),
        run=hello.run,
    )


def encode_join_request(content: ActorReport | ActorProgress | EnvironmentFault) -> run_pb2.JoinRequest:
    """Encodes a later request of an actor. Truncates a fault's text to the length that a server accepts."""
    match content:
        case ActorReport():
            return run_pb2.JoinRequest(report=encode_report(content))
        case ActorProgress():
            return run_pb2.JoinRequest(progress=plain(content))
        case EnvironmentFault():
            return run_pb2.JoinRequest(fault=plain(replace(content, text=content.text[:MAX_FAULT])))
        case _:
            assert_never(content)


def decode_join_request(message: run_pb2.JoinRequest) -> ActorReport | ActorProgress | EnvironmentFault:
    """Decodes a later request of an actor. Raises `InvalidSegment` if it is none or has invalid values."""
    match message.WhichOneof("message"):
        case "report":
            return decode_report(message.report)
        case "progress":
            return _decode_progress(message.progress)
        case "fault":
            return _decode_fault(message.fault)
        case _:
            raise InvalidSegment("after `hello`, a join stream carries reports, progress and faults")


def encode_join_assignment(assignment: Assignment, replay_address: str = "") -> run_pb2.JoinResponse:
    """Encodes the response that assigns an actor its place, as `encode_assignment`."""
    return run_pb2.JoinResponse(assignment=encode_assignment(assignment, replay_address))


def encode_join_replay(place: Place) -> run_pb2.JoinResponse:
    """Encodes the response that tells an actor where its replay service is now."""
    return run_pb2.JoinResponse(replay=encode_place(place))


def encode_join_variants(variants: Sequence[PlayedVariant]) -> run_pb2.JoinResponse:
    """Encodes the response that tells an actor which variants it plays from now on."""
    return run_pb2.JoinResponse(variants=run_pb2.PlayedVariants(variants=[plain(each) for each in variants]))


def encode_join_weights(weights: Weights) -> Iterator[run_pb2.JoinResponse]:
    """Yields the responses that carry weights, in order."""
    for chunk in encode_weights(weights):
        yield run_pb2.JoinResponse(weights=chunk)


def encode_join_finished(reason: str) -> run_pb2.JoinResponse:
    """Encodes the response that reports the end of the run to an actor."""
    return run_pb2.JoinResponse(finished=run_pb2.Finished(reason=reason))


class JoinReader:
    """Reader of the responses to an actor. One per stream."""

    def __init__(self) -> None:
        self._weights = WeightsAssembler()

    def add(self, response: run_pb2.JoinResponse) -> Assignment | Place | Weights | tuple[PlayedVariant, ...] | None:
        """Takes the next response. Returns an assignment, a place, variants, or weights once they are complete.

        Raises `RunFinished` at the end of the run, `InvalidSegment` for shares that are not above 0, else as
        `WeightsAssembler.add`.
        """
        match response.WhichOneof("message"):
            case "finished":
                raise RunFinished(response.finished.reason)
            case "assignment":
                return decode_assignment(response.assignment)
            case "replay":
                return decode_place(response.replay)
            case "variants":
                _check_variants(response.variants.variants)
                return tuple(decoded(PlayedVariant, each) for each in response.variants.variants)
            case "weights":
                return self._weights.add(response.weights)
            case _:
                return None


def encode_evaluator_hello(hello: EvaluatorHello) -> evaluation_pb2.RunEvaluationsRequest:
    """Encodes an evaluator's introduction."""
    environment, location = encode_environment(hello.spec), encode_location(hello.location)
    return evaluation_pb2.RunEvaluationsRequest(
        hello=evaluation_pb2.EvaluatorHello(environment=environment, location=location, run=hello.run)
    )


def decode_evaluator_hello(message: evaluation_pb2.RunEvaluationsRequest) -> EvaluatorHello:
    """Decodes an evaluator's introduction. Raises `InvalidSegment` if it is another message or has invalid values."""
    if message.WhichOneof("message") != "hello":
        raise InvalidSegment("an evaluation stream must begin with `hello`")
    hello = message.hello
    return EvaluatorHello(decode_environment(hello.environment), decode_location(hello.location), hello.run)


def encode_result_request(result: EvaluationResult) -> evaluation_pb2.RunEvaluationsRequest:
    """Encodes the request that carries a result."""
    return evaluation_pb2.RunEvaluationsRequest(result=encode_result(result))


def decode_result_request(
    message: evaluation_pb2.RunEvaluationsRequest, task: EvaluationTask
) -> EvaluationResult | None:
    """Decodes the result of this task; None for another task's result. Raises `InvalidSegment` as `decode_result`."""
    if message.WhichOneof("message") != "result":
        raise InvalidSegment(f"expected the result of evaluation {task.id}, got another message")
    return decode_result(message.result, task) if message.result.id == task.id else None


def encode_evaluations_finished(reason: str) -> evaluation_pb2.RunEvaluationsResponse:
    """Encodes the response that reports the end of the run to an evaluator."""
    return evaluation_pb2.RunEvaluationsResponse(finished=run_pb2.Finished(reason=reason))


class TaskAssembler:
    """Assembler of the responses to an evaluator into tasks. One per stream."""

    def __init__(self) -> None:
        self._weights, self._head = WeightsAssembler(), evaluation_pb2.EvaluationTask()

    def add(self, response: evaluation_pb2.RunEvaluationsResponse) -> EvaluationTask | None:
        """Takes the next response. Returns the task once it is complete.

        Raises `RunFinished` at the end of the run, else as `WeightsAssembler.add` and `decode_task`.
        """
        match response.WhichOneof("message"):
            case "finished":
                raise RunFinished(response.finished.reason)
            case "task":
                self._head = response.task
                return None
        weights = self._weights.add(response.weights)
        return None if weights is None else decode_task(self._head, weights)
