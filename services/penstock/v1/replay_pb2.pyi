from penstock.v1 import block_pb2 as _block_pb2
from penstock.v1 import location_pb2 as _location_pb2
from penstock.v1 import run_pb2 as _run_pb2
from penstock.v1 import snapshot_pb2 as _snapshot_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendSegmentsRequest(_message.Message):
    __slots__ = ("open", "heartbeat", "staging", "window", "contract")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STAGING_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    open: OpenAppend
    heartbeat: Heartbeat
    staging: StagingProof
    window: Window
    contract: int
    def __init__(self, open: _Optional[_Union[OpenAppend, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., staging: _Optional[_Union[StagingProof, _Mapping]] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class OpenAppend(_message.Message):
    __slots__ = ("schema", "slot", "incarnation", "window_segments", "run", "replay_token")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REPLAY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    schema: _block_pb2.Schema
    slot: int
    incarnation: int
    window_segments: int
    run: int
    replay_token: bytes
    def __init__(self, schema: _Optional[_Union[_block_pb2.Schema, _Mapping]] = ..., slot: _Optional[int] = ..., incarnation: _Optional[int] = ..., window_segments: _Optional[int] = ..., run: _Optional[int] = ..., replay_token: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("steps", "round_trip_windows", "waits")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    round_trip_windows: int
    waits: bool
    def __init__(self, steps: _Optional[int] = ..., round_trip_windows: _Optional[int] = ..., waits: bool = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("first_sequence", "version", "environments", "staged_in", "staged_checksum", "block")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    STAGED_IN_FIELD_NUMBER: _ClassVar[int]
    STAGED_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    version: int
    environments: _containers.RepeatedScalarFieldContainer[int]
    staged_in: int
    staged_checksum: int
    block: _block_pb2.Block
    def __init__(self, first_sequence: _Optional[int] = ..., version: _Optional[int] = ..., environments: _Optional[_Iterable[int]] = ..., staged_in: _Optional[int] = ..., staged_checksum: _Optional[int] = ..., block: _Optional[_Union[_block_pb2.Block, _Mapping]] = ...) -> None: ...

class AppendSegmentsResponse(_message.Message):
    __slots__ = ("stored_sequence", "grants", "returned_grants", "staging", "codecs", "staged_codecs", "staging_proof", "contract")
    STORED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    RETURNED_GRANTS_FIELD_NUMBER: _ClassVar[int]
    STAGING_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    STAGED_CODECS_FIELD_NUMBER: _ClassVar[int]
    STAGING_PROOF_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    stored_sequence: int
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    returned_grants: int
    staging: StagingArea
    codecs: _containers.RepeatedScalarFieldContainer[_block_pb2.Codec]
    staged_codecs: _containers.RepeatedScalarFieldContainer[_block_pb2.Codec]
    staging_proof: StagingProof
    contract: int
    def __init__(self, stored_sequence: _Optional[int] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., returned_grants: _Optional[int] = ..., staging: _Optional[_Union[StagingArea, _Mapping]] = ..., codecs: _Optional[_Iterable[_Union[_block_pb2.Codec, str]]] = ..., staged_codecs: _Optional[_Iterable[_Union[_block_pb2.Codec, str]]] = ..., staging_proof: _Optional[_Union[StagingProof, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class StagingArea(_message.Message):
    __slots__ = ("path", "slot_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    slot_bytes: int
    def __init__(self, path: _Optional[str] = ..., slot_bytes: _Optional[int] = ...) -> None: ...

class StagingProof(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("batch", "minimum_version")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_VERSION_FIELD_NUMBER: _ClassVar[int]
    batch: int
    minimum_version: int
    def __init__(self, batch: _Optional[int] = ..., minimum_version: _Optional[int] = ...) -> None: ...

class SampleBatchesRequest(_message.Message):
    __slots__ = ("plan", "batch", "commit", "prove", "codecs", "proof", "contract")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    plan: SamplingPlan
    batch: BatchRequest
    commit: CommitBatchRequest
    prove: ProveStore
    codecs: _containers.RepeatedScalarFieldContainer[_block_pb2.Codec]
    proof: _snapshot_pb2.RunProof
    contract: int
    def __init__(self, plan: _Optional[_Union[SamplingPlan, _Mapping]] = ..., batch: _Optional[_Union[BatchRequest, _Mapping]] = ..., commit: _Optional[_Union[CommitBatchRequest, _Mapping]] = ..., prove: _Optional[_Union[ProveStore, _Mapping]] = ..., codecs: _Optional[_Iterable[_Union[_block_pb2.Codec, str]]] = ..., proof: _Optional[_Union[_snapshot_pb2.RunProof, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class SamplingPlan(_message.Message):
    __slots__ = ("session", "next_batch", "batch_segments", "fresh_segments", "off_policy_degree", "publish_interval", "alpha", "epsilon", "half_life", "max_staleness", "min_replay_segments", "seed", "hurried_below", "slot_weights", "least_share", "run", "actor_key", "largest_magnitude")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FRESH_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    OFF_POLICY_DEGREE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    HALF_LIFE_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLAY_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    HURRIED_BELOW_FIELD_NUMBER: _ClassVar[int]
    SLOT_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    LEAST_SHARE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ACTOR_KEY_FIELD_NUMBER: _ClassVar[int]
    LARGEST_MAGNITUDE_FIELD_NUMBER: _ClassVar[int]
    session: int
    next_batch: int
    batch_segments: int
    fresh_segments: int
    off_policy_degree: int
    publish_interval: int
    alpha: float
    epsilon: float
    half_life: float
    max_staleness: int
    min_replay_segments: int
    seed: int
    hurried_below: int
    slot_weights: _containers.RepeatedScalarFieldContainer[float]
    least_share: float
    run: int
    actor_key: bytes
    largest_magnitude: float
    def __init__(self, session: _Optional[int] = ..., next_batch: _Optional[int] = ..., batch_segments: _Optional[int] = ..., fresh_segments: _Optional[int] = ..., off_policy_degree: _Optional[int] = ..., publish_interval: _Optional[int] = ..., alpha: _Optional[float] = ..., epsilon: _Optional[float] = ..., half_life: _Optional[float] = ..., max_staleness: _Optional[int] = ..., min_replay_segments: _Optional[int] = ..., seed: _Optional[int] = ..., hurried_below: _Optional[int] = ..., slot_weights: _Optional[_Iterable[float]] = ..., least_share: _Optional[float] = ..., run: _Optional[int] = ..., actor_key: _Optional[bytes] = ..., largest_magnitude: _Optional[float] = ...) -> None: ...

class ProveStore(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("batch", "head_only", "replay_segments", "commit")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    HEAD_ONLY_FIELD_NUMBER: _ClassVar[int]
    REPLAY_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    batch: int
    head_only: bool
    replay_segments: int
    commit: CommitBatchRequest
    def __init__(self, batch: _Optional[int] = ..., head_only: bool = ..., replay_segments: _Optional[int] = ..., commit: _Optional[_Union[CommitBatchRequest, _Mapping]] = ...) -> None: ...

class SampleBatchesResponse(_message.Message):
    __slots__ = ("batch", "waiting", "opened", "proof", "fresh_segments", "keys", "versions", "priorities", "probabilities", "counts", "mass", "environments", "slots", "skipped", "committed", "block", "contract")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    FRESH_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    batch: int
    waiting: str
    opened: SamplingOpened
    proof: StoreProof
    fresh_segments: int
    keys: bytes
    versions: bytes
    priorities: bytes
    probabilities: bytes
    counts: StoreCounts
    mass: Mass
    environments: bytes
    slots: bytes
    skipped: bytes
    committed: CommitBatchResponse
    block: _block_pb2.Block
    contract: int
    def __init__(self, batch: _Optional[int] = ..., waiting: _Optional[str] = ..., opened: _Optional[_Union[SamplingOpened, _Mapping]] = ..., proof: _Optional[_Union[StoreProof, _Mapping]] = ..., fresh_segments: _Optional[int] = ..., keys: _Optional[bytes] = ..., versions: _Optional[bytes] = ..., priorities: _Optional[bytes] = ..., probabilities: _Optional[bytes] = ..., counts: _Optional[_Union[StoreCounts, _Mapping]] = ..., mass: _Optional[_Union[Mass, _Mapping]] = ..., environments: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., skipped: _Optional[bytes] = ..., committed: _Optional[_Union[CommitBatchResponse, _Mapping]] = ..., block: _Optional[_Union[_block_pb2.Block, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class Mass(_message.Message):
    __slots__ = ("total", "reference")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    total: float
    reference: int
    def __init__(self, total: _Optional[float] = ..., reference: _Optional[int] = ...) -> None: ...

class SamplingOpened(_message.Message):
    __slots__ = ("store",)
    STORE_FIELD_NUMBER: _ClassVar[int]
    store: MappedStore
    def __init__(self, store: _Optional[_Union[MappedStore, _Mapping]] = ...) -> None: ...

class MappedStore(_message.Message):
    __slots__ = ("folder", "identity")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    folder: str
    identity: int
    def __init__(self, folder: _Optional[str] = ..., identity: _Optional[int] = ...) -> None: ...

class StoreProof(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CommitBatchRequest(_message.Message):
    __slots__ = ("session", "batch", "keys", "priorities", "proof")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    session: int
    batch: int
    keys: bytes
    priorities: bytes
    proof: _snapshot_pb2.RunProof
    def __init__(self, session: _Optional[int] = ..., batch: _Optional[int] = ..., keys: _Optional[bytes] = ..., priorities: _Optional[bytes] = ..., proof: _Optional[_Union[_snapshot_pb2.RunProof, _Mapping]] = ...) -> None: ...

class CommitBatchResponse(_message.Message):
    __slots__ = ("updated", "overwritten", "repeated_commit")
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    OVERWRITTEN_FIELD_NUMBER: _ClassVar[int]
    REPEATED_COMMIT_FIELD_NUMBER: _ClassVar[int]
    updated: int
    overwritten: int
    repeated_commit: bool
    def __init__(self, updated: _Optional[int] = ..., overwritten: _Optional[int] = ..., repeated_commit: bool = ...) -> None: ...

class FinishRunRequest(_message.Message):
    __slots__ = ("session", "proof")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    session: int
    proof: _snapshot_pb2.RunProof
    def __init__(self, session: _Optional[int] = ..., proof: _Optional[_Union[_snapshot_pb2.RunProof, _Mapping]] = ...) -> None: ...

class FinishRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReplayStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReplayStatusResponse(_message.Message):
    __slots__ = ("counts", "version", "actors", "collection_waits_for", "training_waits_for", "place", "location", "largest_incarnation")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    TRAINING_WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    LARGEST_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    counts: StoreCounts
    version: int
    actors: int
    collection_waits_for: str
    training_waits_for: str
    place: _run_pb2.Place
    location: _location_pb2.Location
    largest_incarnation: int
    def __init__(self, counts: _Optional[_Union[StoreCounts, _Mapping]] = ..., version: _Optional[int] = ..., actors: _Optional[int] = ..., collection_waits_for: _Optional[str] = ..., training_waits_for: _Optional[str] = ..., place: _Optional[_Union[_run_pb2.Place, _Mapping]] = ..., location: _Optional[_Union[_location_pb2.Location, _Mapping]] = ..., largest_incarnation: _Optional[int] = ...) -> None: ...

class StoreCounts(_message.Message):
    __slots__ = ("capacity", "stored", "unseen", "leased", "granted", "inserted", "late", "refused", "refunded")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUNDED_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    stored: int
    unseen: int
    leased: int
    granted: int
    inserted: int
    late: int
    refused: int
    refunded: int
    def __init__(self, capacity: _Optional[int] = ..., stored: _Optional[int] = ..., unseen: _Optional[int] = ..., leased: _Optional[int] = ..., granted: _Optional[int] = ..., inserted: _Optional[int] = ..., late: _Optional[int] = ..., refused: _Optional[int] = ..., refunded: _Optional[int] = ...) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ("open", "policy", "proof", "contract")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    open: OpenSnapshot
    policy: _run_pb2.WeightsChunk
    proof: _snapshot_pb2.RunProof
    contract: int
    def __init__(self, open: _Optional[_Union[OpenSnapshot, _Mapping]] = ..., policy: _Optional[_Union[_run_pb2.WeightsChunk, _Mapping]] = ..., proof: _Optional[_Union[_snapshot_pb2.RunProof, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class OpenSnapshot(_message.Message):
    __slots__ = ("name", "version", "automatic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    automatic: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., automatic: bool = ...) -> None: ...

class TakeSnapshotResponse(_message.Message):
    __slots__ = ("progress", "snapshot", "contract")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    progress: _snapshot_pb2.SnapshotProgress
    snapshot: _snapshot_pb2.Snapshot
    contract: int
    def __init__(self, progress: _Optional[_Union[_snapshot_pb2.SnapshotProgress, _Mapping]] = ..., snapshot: _Optional[_Union[_snapshot_pb2.Snapshot, _Mapping]] = ..., contract: _Optional[int] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[_snapshot_pb2.Snapshot]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[_snapshot_pb2.Snapshot, _Mapping]]] = ...) -> None: ...
