"""Films of evaluations, each made by `penstock evaluate` in a process of its own, beside the evaluator.

So neither a renderer that crashes or hangs nor the random numbers that it draws can change an evaluation.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from penstock.acting.protocols import EvaluationQueue, Log
from penstock.machine import background
from penstock.machine.files import write_atomically
from penstock.machine.system_errors import in_words
from penstock.types.evaluation import EvaluationResult, EvaluationTask

_KEPT = 20
"""Newest films of evaluations that are kept. Other files in the folder are never removed."""
_SUFFIX = "-evaluated.mp4"
_GRACE_S = 1.0
"""Seconds in which a process that must end removes its temporary files."""

_COMMAND = (sys.executable, "-Pm", "penstock", "evaluate", "--episodes=0", "--trust-code")
"""The program that films. The evaluator has imported the code that the run names, so the film may import it too."""


class FilmedEvaluations:
    """A queue of evaluations, of which every `evaluation.film_every`-th is filmed. Used by one thread.

    Implements `acting.protocols.EvaluationQueue` with another queue. A film that is due while another is being made
    shows the next evaluation after that one. After a failure there are no more films, and the log has the reason.
    """

    def __init__(
        self,
        queue: EvaluationQueue,
        videos: Path | None,
        *,
        every: int | None,
        limit_s: float,
        log: Log,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        """Makes films in `videos` in the folder of the run (None: it is not known), by the program `command`.

        `every` is the number of evaluations per film (None: no films), and `limit_s` the most seconds for one.
        """
        self._queue, self._every, self._limit_s = queue, every, limit_s
        self._videos, self._log, self._command = videos, log, command
        self._task: EvaluationTask | None = None
        self._evaluations, self._is_due = 0, False
        self._film: _Film | None = None

    def next(self, timeout_s: float) -> EvaluationTask | None:
        """Waits for a task, as the queue does."""
        self._look()
        task = self._queue.next(timeout_s)
        self._task = task or self._task
        return task

    def deliver(self, result: EvaluationResult) -> None:
        """Sends a result as the queue does, and then films its policy if a film is due."""
        self._queue.deliver(result)
        if self._every is None or self._task is None or result.failure:
            return
        self._is_due |= self._evaluations % self._every == 0
        self._evaluations += 1
        self._look()
        if self._is_due and self._film is None:
            self._is_due = False
            self._begin(self._task)

    def close(self) -> None:
        """Drops a film that is being made."""
        if self._film is not None:
            self._film.end()
            self._log.info("film dropped at the end of the evaluator", file=str(self._film.file))

    def _begin(self, task: EvaluationTask) -> None:
        videos = self._videos
        if videos is None or not videos.parent.is_dir():
            where = "the run's folder is not known" if videos is None else f"{videos.parent} does not exist"
            self._give_up(f"{where}; name the run's folder with --evaluation.run, or unset evaluation.film_every")
            return
        try:
            self._film = _Film(videos, task, self._command, time.monotonic() + self._limit_s)
        except OSError as error:
            self._give_up(f"can't film in {videos}: {in_words(error, videos)}")

    def _look(self) -> None:
        """Notes the end of the film that is being made."""
        film = self._film
        if film is None or (film.is_running and time.monotonic() < film.ends_by):
            return
        late, self._film = film.is_running, None
        film.end()
        if late:
            self._give_up(f"a film took longer than {self._limit_s:g} s; raise evaluation.timeout_s")
        elif film.has_failed:
            self._give_up(film.last_line)
        else:
            self._log.info("evaluation filmed", file=str(film.file), removed=_removed(film.file.parent))

    def _give_up(self, reason: str) -> None:
        self._every = None
        self._log.warning("no more evaluations are filmed", reason=reason)


class _Film:
    """A film that is being made by a process. Raises `OSError` if it can't begin."""

    def __init__(self, videos: Path, task: EvaluationTask, command: Sequence[str], ends_by: float) -> None:
        videos.mkdir(exist_ok=True)
        version = task.weights.version
        self.file, self.ends_by = videos / f"version-{version}{_SUFFIX}", ends_by
        # `penstock evaluate` finds the settings of the run two levels above a checkpoint.
        self._policy = videos / f".version-{version}.safetensors"
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            write_atomically(self._policy, task.weights.data)
            self._process = subprocess.Popen(
                [*command, f"--checkpoint={self._policy}", f"--output={self.file}"],
                # The evaluator reads its own input, which tells it of the launcher's end.
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**os.environ, background.PARENT: str(os.getpid())},
                start_new_session=background.OWN_SESSION,
            )
        except OSError:
            self._clean()
            raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def has_failed(self) -> bool:
        return self._process.returncode != 0

    def end(self) -> None:
        """Ends the process if it runs, reads its last line, and removes its policy."""
        if self.is_running:
            # As Ctrl-C, so that it removes its temporary files.
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.seek(0)
        printed = [line for line in self._output.read().decode(errors="replace").splitlines() if line.strip()]
        self.last_line = printed[-1].strip() if printed else f"penstock evaluate ended with {self._process.returncode}"
        self._clean()

    def _clean(self) -> None:
        self._output.close()
        with contextlib.suppress(OSError):
            self._policy.unlink(missing_ok=True)


def _removed(videos: Path) -> list[str]:
    """Removes all but the newest films of evaluations, and returns their names."""
    films = sorted(videos.glob(f"version-*{_SUFFIX}"), key=lambda film: int(film.name.split("-")[1]))
    # The others are removed after the next film.
    with contextlib.suppress(OSError):
        for film in films[:-_KEPT]:
            film.unlink(missing_ok=True)
    return [film.name for film in films[:-_KEPT] if not film.exists()]
