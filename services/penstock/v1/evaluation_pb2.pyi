from penstock.v1 import location_pb2 as _location_pb2
from penstock.v1 import run_pb2 as _run_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunEvaluationsRequest(_message.Message):
    __slots__ = ("hello", "result", "contract")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    hello: EvaluatorHello
    result: EvaluationResult
    contract: int
    def __init__(self, hello: _Optional[_Union[EvaluatorHello, _Mapping]] = ..., result: _Optional[_Union[EvaluationResult, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class EvaluatorHello(_message.Message):
    __slots__ = ("environment", "location", "run")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    environment: _run_pb2.EnvironmentSpec
    location: _location_pb2.Location
    run: int
    def __init__(self, environment: _Optional[_Union[_run_pb2.EnvironmentSpec, _Mapping]] = ..., location: _Optional[_Union[_location_pb2.Location, _Mapping]] = ..., run: _Optional[int] = ...) -> None: ...

class RunEvaluationsResponse(_message.Message):
    __slots__ = ("task", "weights", "finished", "contract")
    TASK_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    task: EvaluationTask
    weights: _run_pb2.WeightsChunk
    finished: _run_pb2.Finished
    contract: int
    def __init__(self, task: _Optional[_Union[EvaluationTask, _Mapping]] = ..., weights: _Optional[_Union[_run_pb2.WeightsChunk, _Mapping]] = ..., finished: _Optional[_Union[_run_pb2.Finished, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class EvaluationTask(_message.Message):
    __slots__ = ("id", "version", "episodes", "deterministic", "seed", "variants", "max_episode_steps", "max_seconds", "run", "untimed_episode_steps", "played")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    MAX_EPISODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    UNTIMED_EPISODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    PLAYED_FIELD_NUMBER: _ClassVar[int]
    id: int
    version: int
    episodes: int
    deterministic: bool
    seed: int
    variants: int
    max_episode_steps: int
    max_seconds: float
    run: int
    untimed_episode_steps: int
    played: _containers.RepeatedCompositeFieldContainer[_run_pb2.PlayedVariant]
    def __init__(self, id: _Optional[int] = ..., version: _Optional[int] = ..., episodes: _Optional[int] = ..., deterministic: bool = ..., seed: _Optional[int] = ..., variants: _Optional[int] = ..., max_episode_steps: _Optional[int] = ..., max_seconds: _Optional[float] = ..., run: _Optional[int] = ..., untimed_episode_steps: _Optional[int] = ..., played: _Optional[_Iterable[_Union[_run_pb2.PlayedVariant, _Mapping]]] = ...) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("id", "version", "returns", "steps", "seconds", "unfinished", "out_of_time", "failure", "info")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_TIME_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    id: int
    version: int
    returns: _containers.RepeatedScalarFieldContainer[float]
    steps: _containers.RepeatedScalarFieldContainer[int]
    seconds: float
    unfinished: int
    out_of_time: bool
    failure: str
    info: _containers.RepeatedCompositeFieldContainer[InfoValues]
    def __init__(self, id: _Optional[int] = ..., version: _Optional[int] = ..., returns: _Optional[_Iterable[float]] = ..., steps: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ..., unfinished: _Optional[int] = ..., out_of_time: bool = ..., failure: _Optional[str] = ..., info: _Optional[_Iterable[_Union[InfoValues, _Mapping]]] = ...) -> None: ...

class InfoValues(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...
