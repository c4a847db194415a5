"""Snapshots of stores and of runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One complete snapshot of a replay store, with the fields of the contract's Snapshot."""

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
    """A request to a store for a snapshot, with the fields of the contract's OpenSnapshot."""

    name: str
    version: int
    automatic: bool


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One complete snapshot of a run, with the fields of the contract's RunSnapshot."""

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
