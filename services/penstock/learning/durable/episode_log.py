"""The file episodes.jsonl of a run (`run.record_episodes`): one JSON object per training episode.

Its size is bounded: above `MOST_BYTES`, the older half of it is removed.
"""

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path

from penstock.learning.durable.journal import MAX_WAITING, Waiting, append, steps_of
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.machine.files import json_of, write_atomically
from penstock.machine.system_errors import in_words
from penstock.types.run import ActorReport, Episode

MOST_BYTES = 64 * 2**20
"""Size in bytes above which the older half of the file is removed: about half a million episodes."""


class EpisodeLog:
    """Sink that writes the episodes which ended before each record. Used by one thread, except `ended`."""

    def __init__(self, path: Path, *, writes: RetriedWrites, notice: Callable[[str], None]) -> None:
        """Names the file. `notice` notifies the user."""
        self._path, self._writes, self._notice = path, writes, notice
        self._arrived: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._waiting = Waiting(path, notice)
        self._written = 0

    def ended(self, report: ActorReport, variant: int, env_steps: int) -> None:
        """Adds an actor's episodes in a variant, reported after `env_steps` trained steps. Any thread may call."""
        if report.episodes:
            lines = [_line(each, report.info_metrics, variant, env_steps) for each in report.episodes]
            self._arrived.append("".join(lines).encode())

    def resume(self, env_steps: int) -> None:
        """Implements `RecordSink`: drops the episodes after this step, and an incomplete last line."""
        try:
            lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        except OSError as error:
            self._notice(f"can't read {self._path}: {in_words(error, self._path)}; new episodes replace its contents")
            return
        # The next write truncates the file.
        for line in lines:
            if (steps_of(line) or 0) > env_steps or not line.endswith(b"\n"):
                break
            self._written += len(line)

    def write(self, record: Record) -> None:
        """Implements `RecordSink`: writes the episodes that have ended, whatever the record."""
        while self._arrived:
            self._waiting.append(self._arrived.popleft())
        self._writes.write(self._path.name, self._write)

    def _write(self) -> None:
        """Writes the waiting lines. The next write overwrites one that failed halfway. Raises `OSError`."""
        self._written = append(self._path, self._waiting.data(), at=self._written)
        self._waiting.clear()
        if self._written > MOST_BYTES:
            newer = self._path.read_bytes()[-MOST_BYTES // 2 :]
            newer = newer[newer.index(b"\n") + 1 :]
            write_atomically(self._path, newer)
            self._written = len(newer)


def _line(episode: Episode, keys: tuple[str, ...], variant: int, env_steps: int) -> str:
    values = {key: None if math.isnan(value) else value for key, value in zip(keys, episode.info, strict=True)}
    return (
        json_of(
            {
                "env_steps": env_steps,
                "return": episode.episode_return,
                "steps": episode.steps,
                "truncated": episode.truncated,
                "environment": episode.environment,
                "variant": variant if episode.variant is None else episode.variant,
                "info": values,
            }
        )
        + "\n"
    )
