"""Snapshots of stores and of runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One complete snapshot of a replay store.

    Attributes:
        name: Name by which the snapshot is restored.
        folder: Folder of the snapshot, as the service sees it.
        taken_unix_s: Unix time of completion, in seconds.
        segments: Segments in the snapshot.
        absent: Segments that were overwritten before they could be copied.
        damaged: Segments left out because their bytes differed from those that had been stored.
        written_bytes: Bytes written for the snapshot.
        shared_bytes: Bytes shared on disk with the previous snapshot.
        seconds: Duration of the snapshot.
        version: Policy version that the store was trained to.
        automatic: Whether it was taken on an interval; a later snapshot removes only these.
    """

    name: str
    folder: str
    taken_unix_s: float
    segments: int
    absent: int
    damaged: int
    written_bytes: int
    shared_bytes: int
    seconds: float
    version: int
    automatic: bool


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request to a store for a snapshot.

    Attributes:
        name: Name by which the snapshot is restored.
        version: Version of its policy; the store is frozen once it was trained to this version.
        automatic: Whether it is taken on an interval; it then replaces an older one of these.
    """

    name: str
    version: int
    automatic: bool


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One complete snapshot of a run.

    Attributes:
        name: Name by which the snapshot is restored.
        version: Version of the policy and of each store.
        env_steps: Environment steps trained.
        stores: Snapshot of each replay service, in the order of `learner.replay_addresses`.
    """

    name: str
    version: int
    env_steps: int
    stores: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """Progress of a snapshot: segments and bytes already processed, and their totals."""

    segments: int = 0
    total_segments: int = 0
    bytes: int = 0
    total_bytes: int = 0
