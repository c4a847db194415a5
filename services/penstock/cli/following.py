"""Follows a run that an engine runs: the display of `penstock train`, until the run ends or the user leaves it."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from rich.console import Console

from penstock.cli.operator import asking, operator_of
from penstock.cli.screen.coordination import show_end
from penstock.cli.screen.display import make_display
from penstock.config import Config
from penstock.errors import PenstockError, Unavailable
from penstock.local.child_log import ChildLog
from penstock.local.startup import beginning
from penstock.machine.files import mark_of
from penstock.machine.installation import program
from penstock.rpc.clients.operator import StatusClient
from penstock.runs.folder import LEARNER, RunFolder
from penstock.runs.summary import Summary
from penstock.types.location import Place
from penstock.types.status import RunStatus

_INTERVAL_S = 1.0
_ENGINE_INTERVAL_S, _ENGINE_SHARE = 10.0, 0.1
"""Seconds between two requests to the engine, whose controller serves a whole cluster, and their largest share of the
time since the start, since most jobs that start at all start soon."""

_ANSWER_S = 2.0


class Follower:
    """Follows one run. `follow` may be called once."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        """Prepares to follow the run in a folder, before it starts."""
        self._folder = folder
        self._status = beginning(config)
        self._before = mark_of(folder.summary)
        # Log entries of earlier turns of the run do not explain the end of this one.
        paths = [folder.logs / f"{name}.log" for name in ("learner", "replay", "evaluator", "services")]
        self._logs = [ChildLog(path, path.stat().st_size if path.exists() else 0) for path in paths]
        self._place: Place | None = None
        self._connection = ExitStack()
        self._client: StatusClient | None = None
        self._notices = 0

    def follow(self, console: Console, engine_state: Callable[[], tuple[str, bool]], *, verbose: bool = False) -> None:
        """Shows the run until its end, and then its summary. Raises `PenstockError` if it ended without one.

        `engine_state` returns the reason why the run waits, as far as the engine knows, and whether the engine has
        ended it.
        """
        with make_display(console, verbose=verbose) as display, self._connection:
            waiting, ended = "", False
            began = asked = time.monotonic()
            while not ended and not self._finished:
                now = time.monotonic()
                if now - asked >= min(_ENGINE_INTERVAL_S, (now - began) * _ENGINE_SHARE):
                    asked = now
                    waiting, ended = engine_state()
                if not ended:
                    display(*self._look(waiting))
                    time.sleep(_INTERVAL_S)
            if self._finished:
                display(replace(self._status, phase="finished", waiting_for=""), [])
        if not self._finished:
            raise PenstockError(f"the run ended without a summary, and {waiting}: {self._cause()}")
        # The learner's path may belong to another machine.
        summary = replace(Summary.read(self._folder.summary), run_dir=str(self._folder.root))
        show_end(console, summary, penstock=program(), verbose=verbose)

    @property
    def _finished(self) -> bool:
        """Whether the learner has written the summary and ended."""
        return mark_of(self._folder.summary) != self._before and not self._folder.services.exists()

    def _cause(self) -> str:
        """Returns the reason that a service has logged, or where to look for it."""
        if not any(log.path.exists() for log in self._logs):
            return (
                f"there is no log in {self._folder.logs}; if the job had started, its node does not share this folder:"
                " choose a --run-dir that all nodes share"
            )
        return next(filter(None, (log.own_reason() for log in self._logs)), f"see the logs in {self._folder.logs}")

    def _look(self, waiting: str) -> tuple[RunStatus, list[str]]:
        """Returns the status and the new notices."""
        try:
            place = self._folder.places()[LEARNER]
            if self._client is None or place != self._place:
                self._connection.close()
                self._client = self._connection.enter_context(asking(place, operator_of(self._folder)))
                self._place = place
            self._status = self._client.get(_ANSWER_S)
        except (OSError, ValueError, KeyError, Unavailable):
            # A list of services without a learner that answers is left over from a killed one, or no route leads there.
            reached = waiting or (
                f"the learner at {self._place.addresses[0]}"
                if self._place is not None and self._folder.services.exists()
                else "the services"
            )
            return replace(self._status, waiting_for=reached), []
        news, self._notices = self._status.notices_after(self._notices)
        return self._status, news
