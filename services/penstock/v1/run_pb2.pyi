from penstock.v1 import block_pb2 as _block_pb2
from penstock.v1 import location_pb2 as _location_pb2
from penstock.v1 import snapshot_pb2 as _snapshot_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("hello", "report", "progress", "fault", "contract")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: ActorReport
    progress: ActorProgress
    fault: EnvironmentFault
    contract: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[ActorReport, _Mapping]] = ..., progress: _Optional[_Union[ActorProgress, _Mapping]] = ..., fault: _Optional[_Union[EnvironmentFault, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("schema", "environment", "environments", "token", "name", "lost", "location", "run")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    schema: _block_pb2.Schema
    environment: EnvironmentSpec
    environments: int
    token: bytes
    name: str
    lost: LostPlace
    location: _location_pb2.Location
    run: int
    def __init__(self, schema: _Optional[_Union[_block_pb2.Schema, _Mapping]] = ..., environment: _Optional[_Union[EnvironmentSpec, _Mapping]] = ..., environments: _Optional[int] = ..., token: _Optional[bytes] = ..., name: _Optional[str] = ..., lost: _Optional[_Union[LostPlace, _Mapping]] = ..., location: _Optional[_Union[_location_pb2.Location, _Mapping]] = ..., run: _Optional[int] = ...) -> None: ...

class LostPlace(_message.Message):
    __slots__ = ("slot", "taken_by")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BY_FIELD_NUMBER: _ClassVar[int]
    slot: int
    taken_by: int
    def __init__(self, slot: _Optional[int] = ..., taken_by: _Optional[int] = ...) -> None: ...

class EnvironmentSpec(_message.Message):
    __slots__ = ("id", "observation", "action", "frames", "mask_bits", "action_types")
    ID_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    MASK_BITS_FIELD_NUMBER: _ClassVar[int]
    ACTION_TYPES_FIELD_NUMBER: _ClassVar[int]
    id: str
    observation: Space
    action: Space
    frames: int
    mask_bits: int
    action_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., observation: _Optional[_Union[Space, _Mapping]] = ..., action: _Optional[_Union[Space, _Mapping]] = ..., frames: _Optional[int] = ..., mask_bits: _Optional[int] = ..., action_types: _Optional[_Iterable[str]] = ...) -> None: ...

class Space(_message.Message):
    __slots__ = ("box", "discrete", "multi_discrete", "multi_binary", "tree")
    BOX_FIELD_NUMBER: _ClassVar[int]
    DISCRETE_FIELD_NUMBER: _ClassVar[int]
    MULTI_DISCRETE_FIELD_NUMBER: _ClassVar[int]
    MULTI_BINARY_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    box: BoxSpace
    discrete: DiscreteSpace
    multi_discrete: MultiDiscreteSpace
    multi_binary: MultiBinarySpace
    tree: Tree
    def __init__(self, box: _Optional[_Union[BoxSpace, _Mapping]] = ..., discrete: _Optional[_Union[DiscreteSpace, _Mapping]] = ..., multi_discrete: _Optional[_Union[MultiDiscreteSpace, _Mapping]] = ..., multi_binary: _Optional[_Union[MultiBinarySpace, _Mapping]] = ..., tree: _Optional[_Union[Tree, _Mapping]] = ...) -> None: ...

class BoxSpace(_message.Message):
    __slots__ = ("data_type", "shape", "low", "high")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    data_type: _block_pb2.DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    low: _containers.RepeatedScalarFieldContainer[float]
    high: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, data_type: _Optional[_Union[_block_pb2.DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., low: _Optional[_Iterable[float]] = ..., high: _Optional[_Iterable[float]] = ...) -> None: ...

class DiscreteSpace(_message.Message):
    __slots__ = ("n", "start")
    N_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    n: int
    start: int
    def __init__(self, n: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class MultiDiscreteSpace(_message.Message):
    __slots__ = ("shape", "n", "start")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    n: _containers.RepeatedScalarFieldContainer[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., n: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ...) -> None: ...

class MultiBinarySpace(_message.Message):
    __slots__ = ("shape",)
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Tree(_message.Message):
    __slots__ = ("leaves",)
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    leaves: _containers.RepeatedCompositeFieldContainer[Leaf]
    def __init__(self, leaves: _Optional[_Iterable[_Union[Leaf, _Mapping]]] = ...) -> None: ...

class Leaf(_message.Message):
    __slots__ = ("path", "space")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    path: _containers.RepeatedCompositeFieldContainer[PathElement]
    space: Space
    def __init__(self, path: _Optional[_Iterable[_Union[PathElement, _Mapping]]] = ..., space: _Optional[_Union[Space, _Mapping]] = ...) -> None: ...

class PathElement(_message.Message):
    __slots__ = ("key", "position")
    KEY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    key: str
    position: int
    def __init__(self, key: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class ActorReport(_message.Message):
    __slots__ = ("env_steps", "first_step_at_s", "episodes", "environment_s", "policy_s", "waiting_s", "building_s", "segments", "late_steps", "info_metrics")
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_AT_S_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    BUILDING_S_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LATE_STEPS_FIELD_NUMBER: _ClassVar[int]
    INFO_METRICS_FIELD_NUMBER: _ClassVar[int]
    env_steps: int
    first_step_at_s: float
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    environment_s: float
    policy_s: float
    waiting_s: float
    building_s: float
    segments: int
    late_steps: int
    info_metrics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, env_steps: _Optional[int] = ..., first_step_at_s: _Optional[float] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., environment_s: _Optional[float] = ..., policy_s: _Optional[float] = ..., waiting_s: _Optional[float] = ..., building_s: _Optional[float] = ..., segments: _Optional[int] = ..., late_steps: _Optional[int] = ..., info_metrics: _Optional[_Iterable[str]] = ...) -> None: ...

class ActorProgress(_message.Message):
    __slots__ = ("steps", "doing", "environment", "window_step", "window_steps")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STEP_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    doing: str
    environment: int
    window_step: int
    window_steps: int
    def __init__(self, steps: _Optional[int] = ..., doing: _Optional[str] = ..., environment: _Optional[int] = ..., window_step: _Optional[int] = ..., window_steps: _Optional[int] = ...) -> None: ...

class EnvironmentFault(_message.Message):
    __slots__ = ("text", "dropped")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    text: str
    dropped: bool
    def __init__(self, text: _Optional[str] = ..., dropped: bool = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("episode_return", "steps", "environment", "truncated", "info", "variant")
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    episode_return: float
    steps: int
    environment: int
    truncated: bool
    info: _containers.RepeatedScalarFieldContainer[float]
    variant: int
    def __init__(self, episode_return: _Optional[float] = ..., steps: _Optional[int] = ..., environment: _Optional[int] = ..., truncated: bool = ..., info: _Optional[_Iterable[float]] = ..., variant: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("assignment", "weights", "finished", "replay", "variants", "contract")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    weights: WeightsChunk
    finished: Finished
    replay: Place
    variants: PlayedVariants
    contract: int
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., weights: _Optional[_Union[WeightsChunk, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., replay: _Optional[_Union[Place, _Mapping]] = ..., variants: _Optional[_Union[PlayedVariants, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("addresses", "identity")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    identity: int
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., identity: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("slot", "incarnation", "environments", "token", "seed", "replay_address", "variant", "temperature", "replay", "run", "replay_token", "variants")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REPLAY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    incarnation: int
    environments: _containers.RepeatedScalarFieldContainer[int]
    token: bytes
    seed: int
    replay_address: str
    variant: int
    temperature: float
    replay: Place
    run: int
    replay_token: bytes
    variants: _containers.RepeatedCompositeFieldContainer[PlayedVariant]
    def __init__(self, slot: _Optional[int] = ..., incarnation: _Optional[int] = ..., environments: _Optional[_Iterable[int]] = ..., token: _Optional[bytes] = ..., seed: _Optional[int] = ..., replay_address: _Optional[str] = ..., variant: _Optional[int] = ..., temperature: _Optional[float] = ..., replay: _Optional[_Union[Place, _Mapping]] = ..., run: _Optional[int] = ..., replay_token: _Optional[bytes] = ..., variants: _Optional[_Iterable[_Union[PlayedVariant, _Mapping]]] = ...) -> None: ...

class PlayedVariant(_message.Message):
    __slots__ = ("number", "arguments", "share")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    number: int
    arguments: str
    share: float
    def __init__(self, number: _Optional[int] = ..., arguments: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class PlayedVariants(_message.Message):
    __slots__ = ("variants",)
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    variants: _containers.RepeatedCompositeFieldContainer[PlayedVariant]
    def __init__(self, variants: _Optional[_Iterable[_Union[PlayedVariant, _Mapping]]] = ...) -> None: ...

class WeightsChunk(_message.Message):
    __slots__ = ("version", "total_bytes", "sha256", "offset", "data")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    version: int
    total_bytes: int
    sha256: bytes
    offset: int
    data: bytes
    def __init__(self, version: _Optional[int] = ..., total_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class GetRunStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRunStatusResponse(_message.Message):
    __slots__ = ("phase", "environment_id", "version", "env_steps", "elapsed_s", "env_steps_per_s", "updates_per_s", "episodes", "return_mean", "last_evaluation", "best_evaluation", "lag_mean", "staleness_mean", "replay_stored", "replay_capacity", "actors", "remaining_s", "waiting_for", "samples_per_insert", "variants", "coordinator", "notices", "actor_states", "env_steps_taken", "limit", "nodes", "wanted_actors", "missing_actors", "info_metrics")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    UPDATES_PER_S_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    LAST_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    BEST_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    LAG_MEAN_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MEAN_FIELD_NUMBER: _ClassVar[int]
    REPLAY_STORED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    ACTOR_STATES_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    WANTED_ACTORS_FIELD_NUMBER: _ClassVar[int]
    MISSING_ACTORS_FIELD_NUMBER: _ClassVar[int]
    INFO_METRICS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    environment_id: str
    version: int
    env_steps: int
    elapsed_s: float
    env_steps_per_s: float
    updates_per_s: float
    episodes: int
    return_mean: float
    last_evaluation: EvaluationSummary
    best_evaluation: EvaluationSummary
    lag_mean: float
    staleness_mean: float
    replay_stored: int
    replay_capacity: int
    actors: int
    remaining_s: float
    waiting_for: str
    samples_per_insert: float
    variants: _containers.RepeatedCompositeFieldContainer[VariantStatus]
    coordinator: CoordinatorStatistics
    notices: _containers.RepeatedCompositeFieldContainer[Notice]
    actor_states: _containers.RepeatedCompositeFieldContainer[ActorState]
    env_steps_taken: int
    limit: RunLimit
    nodes: _containers.RepeatedCompositeFieldContainer[NodeState]
    wanted_actors: int
    missing_actors: MissingActors
    info_metrics: _containers.RepeatedCompositeFieldContainer[InfoMetric]
    def __init__(self, phase: _Optional[str] = ..., environment_id: _Optional[str] = ..., version: _Optional[int] = ..., env_steps: _Optional[int] = ..., elapsed_s: _Optional[float] = ..., env_steps_per_s: _Optional[float] = ..., updates_per_s: _Optional[float] = ..., episodes: _Optional[int] = ..., return_mean: _Optional[float] = ..., last_evaluation: _Optional[_Union[EvaluationSummary, _Mapping]] = ..., best_evaluation: _Optional[_Union[EvaluationSummary, _Mapping]] = ..., lag_mean: _Optional[float] = ..., staleness_mean: _Optional[float] = ..., replay_stored: _Optional[int] = ..., replay_capacity: _Optional[int] = ..., actors: _Optional[int] = ..., remaining_s: _Optional[float] = ..., waiting_for: _Optional[str] = ..., samples_per_insert: _Optional[float] = ..., variants: _Optional[_Iterable[_Union[VariantStatus, _Mapping]]] = ..., coordinator: _Optional[_Union[CoordinatorStatistics, _Mapping]] = ..., notices: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ..., actor_states: _Optional[_Iterable[_Union[ActorState, _Mapping]]] = ..., env_steps_taken: _Optional[int] = ..., limit: _Optional[_Union[RunLimit, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeState, _Mapping]]] = ..., wanted_actors: _Optional[int] = ..., missing_actors: _Optional[_Union[MissingActors, _Mapping]] = ..., info_metrics: _Optional[_Iterable[_Union[InfoMetric, _Mapping]]] = ...) -> None: ...

class InfoMetric(_message.Message):
    __slots__ = ("name", "episodes", "mean", "missing")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    name: str
    episodes: int
    mean: float
    missing: int
    def __init__(self, name: _Optional[str] = ..., episodes: _Optional[int] = ..., mean: _Optional[float] = ..., missing: _Optional[int] = ...) -> None: ...

class MissingActors(_message.Message):
    __slots__ = ("expected", "seconds", "command")
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    expected: int
    seconds: float
    command: str
    def __init__(self, expected: _Optional[int] = ..., seconds: _Optional[float] = ..., command: _Optional[str] = ...) -> None: ...

class RunLimit(_message.Message):
    __slots__ = ("unit", "done", "total")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    unit: str
    done: float
    total: float
    def __init__(self, unit: _Optional[str] = ..., done: _Optional[float] = ..., total: _Optional[float] = ...) -> None: ...

class ActorState(_message.Message):
    __slots__ = ("name", "slot", "connected", "steps", "segments", "stuck_s", "failures", "dropped_windows", "doing", "node", "job", "steps_per_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    STUCK_S_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    slot: int
    connected: bool
    steps: int
    segments: int
    stuck_s: float
    failures: int
    dropped_windows: int
    doing: str
    node: str
    job: str
    steps_per_s: float
    def __init__(self, name: _Optional[str] = ..., slot: _Optional[int] = ..., connected: bool = ..., steps: _Optional[int] = ..., segments: _Optional[int] = ..., stuck_s: _Optional[float] = ..., failures: _Optional[int] = ..., dropped_windows: _Optional[int] = ..., doing: _Optional[str] = ..., node: _Optional[str] = ..., job: _Optional[str] = ..., steps_per_s: _Optional[float] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ("name", "actors", "stuck", "steps_per_s", "least_steps_per_s", "most_steps_per_s", "waiting_share")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEAST_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    MOST_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_SHARE_FIELD_NUMBER: _ClassVar[int]
    name: str
    actors: int
    stuck: int
    steps_per_s: float
    least_steps_per_s: float
    most_steps_per_s: float
    waiting_share: float
    def __init__(self, name: _Optional[str] = ..., actors: _Optional[int] = ..., stuck: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., least_steps_per_s: _Optional[float] = ..., most_steps_per_s: _Optional[float] = ..., waiting_share: _Optional[float] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("number", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    text: str
    def __init__(self, number: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class VariantStatus(_message.Message):
    __slots__ = ("arguments", "episodes", "return_mean", "planned_share", "fresh_share", "number")
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    PLANNED_SHARE_FIELD_NUMBER: _ClassVar[int]
    FRESH_SHARE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    arguments: str
    episodes: int
    return_mean: float
    planned_share: float
    fresh_share: float
    number: int
    def __init__(self, arguments: _Optional[str] = ..., episodes: _Optional[int] = ..., return_mean: _Optional[float] = ..., planned_share: _Optional[float] = ..., fresh_share: _Optional[float] = ..., number: _Optional[int] = ...) -> None: ...

class CoordinatorStatistics(_message.Message):
    __slots__ = ("mode", "off_policy_degree", "segments_collected", "batches_collected", "segments_trained", "batches_trained", "evaluations", "lag", "staleness", "times", "waits", "drops", "last", "recent", "recent_batches", "first_entropy", "alpha", "replayed", "curve", "features")
    MODE_FIELD_NUMBER: _ClassVar[int]
    OFF_POLICY_DEGREE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_COLLECTED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_COLLECTED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_TRAINED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_TRAINED_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    RECENT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    mode: str
    off_policy_degree: int
    segments_collected: int
    batches_collected: float
    segments_trained: int
    batches_trained: int
    evaluations: int
    lag: Ages
    staleness: Ages
    times: MeanTimes
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    drops: Drops
    last: LearningNumbers
    recent: LearningNumbers
    recent_batches: int
    first_entropy: float
    alpha: float
    replayed: Replayed
    curve: Curve
    features: Features
    def __init__(self, mode: _Optional[str] = ..., off_policy_degree: _Optional[int] = ..., segments_collected: _Optional[int] = ..., batches_collected: _Optional[float] = ..., segments_trained: _Optional[int] = ..., batches_trained: _Optional[int] = ..., evaluations: _Optional[int] = ..., lag: _Optional[_Union[Ages, _Mapping]] = ..., staleness: _Optional[_Union[Ages, _Mapping]] = ..., times: _Optional[_Union[MeanTimes, _Mapping]] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., drops: _Optional[_Union[Drops, _Mapping]] = ..., last: _Optional[_Union[LearningNumbers, _Mapping]] = ..., recent: _Optional[_Union[LearningNumbers, _Mapping]] = ..., recent_batches: _Optional[int] = ..., first_entropy: _Optional[float] = ..., alpha: _Optional[float] = ..., replayed: _Optional[_Union[Replayed, _Mapping]] = ..., curve: _Optional[_Union[Curve, _Mapping]] = ..., features: _Optional[_Union[Features, _Mapping]] = ...) -> None: ...

class Curve(_message.Message):
    __slots__ = ("points", "best", "worst", "first", "newest", "low", "high", "comparable")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    WORST_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    COMPARABLE_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[CurvePoint]
    best: Returns
    worst: Returns
    first: Returns
    newest: Returns
    low: float
    high: float
    comparable: bool
    def __init__(self, points: _Optional[_Iterable[_Union[CurvePoint, _Mapping]]] = ..., best: _Optional[_Union[Returns, _Mapping]] = ..., worst: _Optional[_Union[Returns, _Mapping]] = ..., first: _Optional[_Union[Returns, _Mapping]] = ..., newest: _Optional[_Union[Returns, _Mapping]] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., comparable: bool = ...) -> None: ...

class CurvePoint(_message.Message):
    __slots__ = ("env_steps", "evaluation", "unfinished", "training")
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    env_steps: int
    evaluation: Returns
    unfinished: int
    training: Returns
    def __init__(self, env_steps: _Optional[int] = ..., evaluation: _Optional[_Union[Returns, _Mapping]] = ..., unfinished: _Optional[int] = ..., training: _Optional[_Union[Returns, _Mapping]] = ...) -> None: ...

class Returns(_message.Message):
    __slots__ = ("episodes", "mean", "std")
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    episodes: int
    mean: float
    std: float
    def __init__(self, episodes: _Optional[int] = ..., mean: _Optional[float] = ..., std: _Optional[float] = ...) -> None: ...

class Features(_message.Message):
    __slots__ = ("count", "constant", "coarse")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    COARSE_FIELD_NUMBER: _ClassVar[int]
    count: int
    constant: int
    coarse: int
    def __init__(self, count: _Optional[int] = ..., constant: _Optional[int] = ..., coarse: _Optional[int] = ...) -> None: ...

class Replayed(_message.Message):
    __slots__ = ("age_mean", "age_90", "drawn_priority")
    AGE_MEAN_FIELD_NUMBER: _ClassVar[int]
    AGE_90_FIELD_NUMBER: _ClassVar[int]
    DRAWN_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    age_mean: float
    age_90: float
    drawn_priority: float
    def __init__(self, age_mean: _Optional[float] = ..., age_90: _Optional[float] = ..., drawn_priority: _Optional[float] = ...) -> None: ...

class Ages(_message.Message):
    __slots__ = ("last", "mean", "maximum")
    LAST_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    last: float
    mean: float
    maximum: int
    def __init__(self, last: _Optional[float] = ..., mean: _Optional[float] = ..., maximum: _Optional[int] = ...) -> None: ...

class MeanTimes(_message.Message):
    __slots__ = ("collect_environment_s", "collect_policy_s", "collect_wait_s", "batch_wait_s", "batch_train_s", "evaluation_s", "collect_build_s", "batch_callbacks_s")
    COLLECT_ENVIRONMENT_S_FIELD_NUMBER: _ClassVar[int]
    COLLECT_POLICY_S_FIELD_NUMBER: _ClassVar[int]
    COLLECT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    BATCH_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    BATCH_TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_S_FIELD_NUMBER: _ClassVar[int]
    COLLECT_BUILD_S_FIELD_NUMBER: _ClassVar[int]
    BATCH_CALLBACKS_S_FIELD_NUMBER: _ClassVar[int]
    collect_environment_s: float
    collect_policy_s: float
    collect_wait_s: float
    batch_wait_s: float
    batch_train_s: float
    evaluation_s: float
    collect_build_s: float
    batch_callbacks_s: float
    def __init__(self, collect_environment_s: _Optional[float] = ..., collect_policy_s: _Optional[float] = ..., collect_wait_s: _Optional[float] = ..., batch_wait_s: _Optional[float] = ..., batch_train_s: _Optional[float] = ..., evaluation_s: _Optional[float] = ..., collect_build_s: _Optional[float] = ..., batch_callbacks_s: _Optional[float] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason", "seconds", "share")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    seconds: float
    share: float
    def __init__(self, reason: _Optional[str] = ..., seconds: _Optional[float] = ..., share: _Optional[float] = ...) -> None: ...

class Drops(_message.Message):
    __slots__ = ("late_segments", "refused_segments", "refunded_segments", "overwritten_priorities", "refused_steps", "unsound_rows", "left_out_values")
    LATE_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    REFUNDED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    OVERWRITTEN_PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNSOUND_ROWS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    late_segments: int
    refused_segments: int
    refunded_segments: int
    overwritten_priorities: int
    refused_steps: int
    unsound_rows: int
    left_out_values: int
    def __init__(self, late_segments: _Optional[int] = ..., refused_segments: _Optional[int] = ..., refunded_segments: _Optional[int] = ..., overwritten_priorities: _Optional[int] = ..., refused_steps: _Optional[int] = ..., unsound_rows: _Optional[int] = ..., left_out_values: _Optional[int] = ...) -> None: ...

class LearningNumbers(_message.Message):
    __slots__ = ("effective_sample_share", "fresh_effective_share", "clipped_share", "approximate_kl", "entropy", "explained_variance", "gradient_norm", "priority_gain", "policy_loss", "value_loss", "actions_at_bound")
    EFFECTIVE_SAMPLE_SHARE_FIELD_NUMBER: _ClassVar[int]
    FRESH_EFFECTIVE_SHARE_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_SHARE_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATE_KL_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    EXPLAINED_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_GAIN_FIELD_NUMBER: _ClassVar[int]
    POLICY_LOSS_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOSS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_AT_BOUND_FIELD_NUMBER: _ClassVar[int]
    effective_sample_share: float
    fresh_effective_share: float
    clipped_share: float
    approximate_kl: float
    entropy: float
    explained_variance: float
    gradient_norm: float
    priority_gain: float
    policy_loss: float
    value_loss: float
    actions_at_bound: float
    def __init__(self, effective_sample_share: _Optional[float] = ..., fresh_effective_share: _Optional[float] = ..., clipped_share: _Optional[float] = ..., approximate_kl: _Optional[float] = ..., entropy: _Optional[float] = ..., explained_variance: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., priority_gain: _Optional[float] = ..., policy_loss: _Optional[float] = ..., value_loss: _Optional[float] = ..., actions_at_bound: _Optional[float] = ...) -> None: ...

class EvaluationSummary(_message.Message):
    __slots__ = ("version", "env_steps", "episodes", "return_mean", "return_std", "variants", "unfinished", "info_metrics")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    RETURN_STD_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    INFO_METRICS_FIELD_NUMBER: _ClassVar[int]
    version: int
    env_steps: int
    episodes: int
    return_mean: float
    return_std: float
    variants: _containers.RepeatedCompositeFieldContainer[VariantReturns]
    unfinished: int
    info_metrics: _containers.RepeatedCompositeFieldContainer[InfoMetric]
    def __init__(self, version: _Optional[int] = ..., env_steps: _Optional[int] = ..., episodes: _Optional[int] = ..., return_mean: _Optional[float] = ..., return_std: _Optional[float] = ..., variants: _Optional[_Iterable[_Union[VariantReturns, _Mapping]]] = ..., unfinished: _Optional[int] = ..., info_metrics: _Optional[_Iterable[_Union[InfoMetric, _Mapping]]] = ...) -> None: ...

class VariantReturns(_message.Message):
    __slots__ = ("episodes", "return_mean", "return_std", "number")
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    RETURN_STD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    episodes: int
    return_mean: float
    return_std: float
    number: int
    def __init__(self, episodes: _Optional[int] = ..., return_mean: _Optional[float] = ..., return_std: _Optional[float] = ..., number: _Optional[int] = ...) -> None: ...

class TakeRunSnapshotRequest(_message.Message):
    __slots__ = ("name", "proof", "contract")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    name: str
    proof: _snapshot_pb2.RunProof
    contract: int
    def __init__(self, name: _Optional[str] = ..., proof: _Optional[_Union[_snapshot_pb2.RunProof, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class ChangeVariantsRequest(_message.Message):
    __slots__ = ("add", "retire", "proof", "contract")
    ADD_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedScalarFieldContainer[str]
    retire: _containers.RepeatedScalarFieldContainer[int]
    proof: _snapshot_pb2.RunProof
    contract: int
    def __init__(self, add: _Optional[_Iterable[str]] = ..., retire: _Optional[_Iterable[int]] = ..., proof: _Optional[_Union[_snapshot_pb2.RunProof, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class ChangeVariantsResponse(_message.Message):
    __slots__ = ("variants", "contract")
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    variants: _containers.RepeatedCompositeFieldContainer[KnownVariant]
    contract: int
    def __init__(self, variants: _Optional[_Iterable[_Union[KnownVariant, _Mapping]]] = ..., contract: _Optional[int] = ...) -> None: ...

class KnownVariant(_message.Message):
    __slots__ = ("number", "arguments", "retired", "share", "episodes", "return_mean")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    number: int
    arguments: str
    retired: bool
    share: float
    episodes: int
    return_mean: float
    def __init__(self, number: _Optional[int] = ..., arguments: _Optional[str] = ..., retired: bool = ..., share: _Optional[float] = ..., episodes: _Optional[int] = ..., return_mean: _Optional[float] = ...) -> None: ...

class TakeRunSnapshotResponse(_message.Message):
    __slots__ = ("progress", "snapshot", "contract")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    progress: _snapshot_pb2.SnapshotProgress
    snapshot: RunSnapshot
    contract: int
    def __init__(self, progress: _Optional[_Union[_snapshot_pb2.SnapshotProgress, _Mapping]] = ..., snapshot: _Optional[_Union[RunSnapshot, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class RunSnapshot(_message.Message):
    __slots__ = ("name", "version", "env_steps", "stores")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    env_steps: int
    stores: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.Snapshot]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., env_steps: _Optional[int] = ..., stores: _Optional[_Iterable[_Union[_snapshot_pb2.Snapshot, _Mapping]]] = ...) -> None: ...
