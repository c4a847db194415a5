"""Runs all services of a run on one machine, as child processes that use Unix sockets, until the learner is done."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.config import Config
from penstock.errors import ConfigurationError, PenstockError, Unavailable, exit_code
from penstock.local import stopping
from penstock.local.aborted_start import AbortedStart
from penstock.local.actor_count import ActorCount, with_workers
from penstock.local.actors import Actors
from penstock.local.children import Children, service_command
from penstock.local.environment_check import check_environment
from penstock.local.first_checks import check_at_once, with_run_dir
from penstock.local.learning_curves import draw, why_not_drawn
from penstock.local.places import Places, choose_places
from penstock.local.sockets import sockets_of
from penstock.local.startup import Startup, beginning
from penstock.local.store_size import conversion, with_store
from penstock.local.template import Template
from penstock.local.tracking import TrackingProcess
from penstock.machine import extras
from penstock.machine.file_systems import free_bytes
from penstock.machine.files import mark_of, write_atomically
from penstock.machine.system_errors import in_words
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs import remote_copies
from penstock.runs.end import RunEnd, announce, obstacle
from penstock.runs.folder import LEARNER, RunFolder
from penstock.runs.store_place import StorePlace, choose_place, record_place, remove_store
from penstock.runs.summary import Summary
from penstock.types.status import RESUMABLE, RunStatus

_POLL_S, _START_POLL_S = 0.2, 0.02
_STATUS_TIMEOUT_S = 1.0
_STATUS_INTERVAL_S, _STATUS_SHARE = 1.0, 0.05
"""Seconds between two requests for the status, and their largest share of the time since the start.

A short run has a status at every look, and a long one spends less on them."""
_START_TIMEOUT_S = 120.0
"""Seconds without a change of any service's state after which a start is given up.

On a slow machine, a new installation compiles for minutes."""

_ERRORS_INTERVAL_S = 1.0

Observer = Callable[[RunStatus, list[str]], None]
"""Callback that receives the run's status and lines of news a few times per second."""


def train(
    config: Config,
    *,
    resume: bool = False,
    observer: Observer = lambda status, news: None,
    started: float | None = None,
    policy: bytes | None = None,
) -> Summary:
    """Trains an agent with this configuration, and returns the run's summary.

    Args:
        config: All settings; the launcher chooses the addresses of the services itself.
        resume: Whether to resume the run in `config.run.dir`.
        observer: Callback for the status and news. If it raises, the learner saves a checkpoint and the run ends, with
            its summary in case of `StopTraining`.
        started: Start time of the command, by `time.monotonic`; None: now.
        policy: File of a policy, which is written to `start.safetensors` in the run's folder; None: none.

    Raises:
        ConfigurationError: The environment, the folder or a setting can't be used. The run's folder is unchanged.
        PenstockError: A service gave up or died too often, or the run's summary or curve could not be written.
        Interrupted: Ctrl-C after training began. Before training, a plain `KeyboardInterrupt` is raised.
    """
    started = time.monotonic() if started is None else started
    config = with_run_dir(config)
    check_at_once(config, resume=resume)
    if config.checkpoint.copy_to is not None:
        remote_copies.check(config.checkpoint.copy_to)
    # The template imports the services' modules while the environment is checked.
    with Template() as template:
        count = ActorCount.of(config)
        first = count.number if count else config.train.least_actors
        startup = Startup(beginning(config), template, replays=config.train.replay_shards, actors=first)
        config, place = _prepared(config, lambda *news: observer(startup.status("checking"), [*news]))
        folder = RunFolder(Path(config.run.dir or "."))
        start = AbortedStart(folder)
        with start.undone():
            folder.create()
            start.made(place.root)
            with _failing_in_words(folder):
                record_place(folder, place)
                if policy is not None:
                    write_atomically(folder.start, policy)
                session = _Session(
                    config, place, start, observer=observer, template=template, startup=startup, count=count
                )
                by_observer = session.run(started)
    summary = session.conclude(started, by_observer=by_observer)
    if summary.stopped not in RESUMABLE:
        session.announce(RunEnd.of_summary(folder, summary))
    return summary


def _prepared(config: Config, look: Callable[..., None]) -> tuple[Config, StorePlace]:
    """Checks the environment, and returns the settings with a store that fits it, and the place of the store.

    `look` receives lines of news. Raises `ConfigurationError` as `train`.
    """
    if line := obstacle(config.run.on_end):
        look(line)
    config, store_bytes = check_environment(config, look, look)
    config = with_workers(config)
    if line := why_not_drawn():
        look(line)
    if config.evaluation.film_every and extras.missing("moviepy"):
        look(f"evaluations will not be filmed, because films need moviepy; {extras.installation('moviepy')}")
    place = choose_place(RunFolder(Path(config.run.dir or ".")), config.replay.folder)
    config = with_store(config, store_bytes, free_bytes(place.root))
    for line in [*place.notes, conversion(config, store_bytes)]:
        if line:
            look(line)
    return config, place


@contextlib.contextmanager
def _failing_in_words(folder: RunFolder) -> Iterator[None]:
    """Turns errors of the operating system into a line with the reason and the remedy."""
    try:
        yield
    except BrokenPipeError:
        # The command's own output was closed, which is how its user ends it.
        raise
    except OSError as error:
        reason = in_words(error, folder.root, "choose another --run-dir")
        raise ConfigurationError(f"can't keep the run in {folder.root}: {reason}") from error


class _Session:
    """The services of a run, from start to end."""

    def __init__(
        self,
        config: Config,
        place: StorePlace,
        start: AbortedStart,
        *,
        observer: Observer,
        template: Template,
        startup: Startup,
        count: ActorCount | None,
    ) -> None:
        folder = RunFolder(Path(config.run.dir or "."))
        self._config, self._folder, self._place = config, folder, place
        self._start, self._observer = start, observer
        self._template, self._startup, self._count = template, startup, count
        self._status, self._summary_before = beginning(config), mark_of(folder.summary)
        self._children = Children(config.train.max_restarts, template, folder.newest_checkpoint_steps() or 0)
        self._tracking = TrackingProcess(config, folder)
        self._thread = LoopThread()
        self._newest_notice, self._errors_at = 0, 0.0

    def run(self, started: float) -> bool:
        """Runs the services until the run ends; returns whether the observer has ended it. `started` as for `train`."""
        try:
            self._run_services()
        except stopping.StopTraining:
            return True
        except Exception as error:
            self.announce(RunEnd.of_fault(self._folder, error, exit_code(error), self._config.environment.short_name))
            raise
        except stopping.Interrupted:
            self.show("drawing the learning curve")
            with contextlib.suppress(OSError, PenstockError):
                if self._has_summary:
                    self.conclude(started)
                else:
                    _draw(self._folder)
            raise
        return False

    def conclude(self, started: float, *, by_observer: bool = False) -> Summary:
        """Draws the curve, completes the summary and returns it. Raises `PenstockError` if there is none."""
        folder = self._folder
        if not self._has_summary:
            raise PenstockError(f"the run ended without a summary; see the logs in {folder.logs}")
        try:
            _draw(folder)
            summary = Summary.read(folder.summary).timed(time.monotonic() - started)
            if by_observer and summary.stopped == "interrupted":
                summary = dataclasses.replace(summary, stopped="callback")
            summary.write(folder.summary)
        except OSError as error:
            raise PenstockError(
                f"the run has ended, but its summary or curve could not be written in {folder.root}:"
                f" {in_words(error, folder.root)}; the checkpoints are complete, and penstock plot draws the curve"
            ) from error
        if summary.stopped not in RESUMABLE:
            # If a finished run is extended later, it starts from new experience.
            remove_store(folder, self._place)
        return summary

    @property
    def _has_summary(self) -> bool:
        return mark_of(self._folder.summary) != self._summary_before

    def _run_services(self) -> None:
        """Runs the services until the learner exits with code 0, or an error or a signal ends the run."""
        folder, config = self._folder, self._config
        try:
            with sockets_of(folder) as sockets, self._children:
                write_atomically(folder.config, config.repeatable().to_toml().encode())
                places = choose_places(config, folder, sockets)
                # All services are listed before any is started, so that the list is complete if the launcher dies.
                actors = Actors(
                    sockets,
                    self._startup.actors,
                    self._count,
                    self._children,
                    folder=folder,
                    settings=places.options,
                    others=places.named,
                    step_timeout_s=config.step_patience_s,
                )
                try:
                    self._await_template()
                    self._start_services(places, actors)
                    self._await_health()
                    self._observer(self._startup.status(), self._tracking.start(self._children.guard))
                    self._watch(places, actors)
                except BaseException as error:
                    self._stop(error)
                    raise
                finally:
                    self._finish_tracking()
        finally:
            with contextlib.suppress(OSError):
                folder.services.unlink(missing_ok=True)
            self._thread.close()

    def show(self, doing: str) -> None:
        """Shows the user work after the end of the services."""
        self._observer(dataclasses.replace(self._status, phase="stopping", waiting_for=""), [doing])

    def announce(self, end: RunEnd) -> None:
        """Tells whom `run.on_end` names of the run's end, and the user of a failure to do so."""
        if failure := announce(self._config.run.on_end, end):
            # The observer may be the cause of the end.
            with contextlib.suppress(Exception):
                self.show(failure)

    def _finish_tracking(self) -> None:
        for line in self._tracking.finish():
            # The observer may be the cause of the end.
            with contextlib.suppress(Exception):
                self.show(line)

    def _await_template(self) -> None:
        while self._template.pending and self._startup.unchanged_s < _START_TIMEOUT_S:
            self._observer(self._startup.status(), [])
            time.sleep(_START_POLL_S)
        if self._template.unusable:
            self._observer(self._startup.status(), [self._template.unusable])

    def _start_services(self, places: Places, actors: Actors) -> None:
        settings, logs = places.options, self._folder.logs
        for shard, name in enumerate(places.replay_names):
            own = places.replay_options(shard, self._config, self._folder, self._place.root)
            self._children.add(name, service_command("replay", *settings, *own), logs / f"{name}.log")
        copy_to = self._config.checkpoint.copy_to
        for name in ("learner", "evaluator"):
            own = [f"--checkpoint.copy-to={copy_to}"] if name == "learner" and copy_to else []
            self._children.add(name, service_command(name, *settings, *own), logs / f"{name}.log")
        actors.start()
        self._startup.started(self._children, places.named)

    def _await_health(self) -> None:
        learner = self._children.find("learner")
        # Evaluations may begin later. The learner of a finished run may exit before it serves.
        while (late := [name for name in self._startup.look() if name != "evaluator"]) and learner.exit_code != 0:
            self._observer(self._startup.status(), [*self._children.revive(), *self._new_errors()])
            if self._startup.unchanged_s > _START_TIMEOUT_S:
                raise PenstockError(f"{late[0]} did not become ready: {self._children.find(late[0]).log.cause()}")
            time.sleep(_START_POLL_S)

    def _watch(self, places: Places, actors: Actors) -> None:
        """Restarts dead children and calls the observer until the learner exits with code 0."""
        client, learner = StatusClient(self._thread, places.named[LEARNER]), self._children.find("learner")
        try:
            began, asked = time.monotonic(), 0.0
            while learner.exit_code != 0:
                news = [*self._children.revive(), *self._new_errors(), *self._tracking.news()]
                now, answers = time.monotonic(), True
                try:
                    if now - asked >= min((now - began) * _STATUS_SHARE, _STATUS_INTERVAL_S):
                        asked, self._status = now, client.get(_STATUS_TIMEOUT_S)
                        news += self._note_status()
                except Unavailable:
                    answers = False
                    self._status = dataclasses.replace(self._status, waiting_for="the learner")
                self._observer(self._shown(answers), [*news, *actors.adapt(self._status)])
                time.sleep(_POLL_S)
            self._observer(dataclasses.replace(self._status, phase="finished", waiting_for=""), [])
        finally:
            client.close()

    def _shown(self, answers: bool) -> RunStatus:
        """Returns the status for the user: all services' status until a batch was trained, then the learner's.

        `answers` is whether the learner has answered the last request.
        """
        if self._start.has_trained:
            return self._status
        self._startup.look()
        return self._startup.status(learner=self._status if answers else None)

    def _new_errors(self) -> list[str]:
        """Returns errors that running children have reported, as long as no batch was trained, about once a second."""
        if self._start.has_trained or time.monotonic() < self._errors_at:
            return []
        self._errors_at = time.monotonic() + _ERRORS_INTERVAL_S
        return self._children.new_errors()

    def _note_status(self) -> list[str]:
        """Records the children's progress from the status; returns the learner's new notices."""
        status = self._status
        if status.coordinator is not None and status.coordinator.batches_trained:
            self._start.note_training()
        self._children.progressed(_progress(status, [child.name for child in self._children.members]))
        news, self._newest_notice = status.notices_after(self._newest_notice)
        return news

    def _stop(self, error: BaseException) -> None:
        """Lets the learner finish its batch and save a checkpoint while the replay service still runs.

        Raises `Interrupted` in place of a `KeyboardInterrupt`, if a batch was trained.
        """
        learner = next((child for child in self._children.members if child.name == "learner"), None)
        if learner is None or (isinstance(error, PenstockError) and not self._start.has_trained):
            return
        if not isinstance(error, (KeyboardInterrupt, PenstockError)):
            # The observer may have raised the error, so it is not called again.
            self._observer = lambda status, news: None
        reason = str(error) if isinstance(error, PenstockError) else ""
        finished = stopping.finish(learner, self._status, self._observer, reason=reason)
        self.show("ending the other services")
        if isinstance(error, KeyboardInterrupt) and self._start.has_trained:
            saved_steps = self._folder.newest_checkpoint_steps()
            raise stopping.Interrupted(saved_steps, self._status.env_steps, finished) from None


def _progress(status: RunStatus, names: list[str]) -> dict[str, int]:
    """Returns the work that each service has done: segments of an actor, evaluations, or steps of the run."""
    done = dict.fromkeys(names, status.env_steps)
    done["evaluator"] = status.coordinator.evaluations if status.coordinator is not None else 0
    # An actor without a state at the learner has delivered no segment yet.
    delivered = {state.name: state.segments for state in status.actor_states}
    return done | {name: delivered.get(name, 0) for name in names if name.startswith("actor")}


def _draw(folder: RunFolder) -> None:
    if folder.metrics.exists() and not why_not_drawn():
        draw([folder], folder.learning_curve)
