"""Services on two hosts whose links are disturbed and cut, and observations of them.

Each story waits for batches under each disturbance, cuts its links until both sides have logged the loss, restores
them, and waits for the next batch. The ledger of `tests.support.torture` accounts for every segment.
"""

import functools
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from structlog.testing import capture_logs

from penstock.errors import Unavailable
from penstock.replay.store.ring_store import RingStore
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.types.replay import SamplingPlan
from penstock.types.status import RunStatus
from tests.support.machine.timing import PATIENCE_S, Bound, longest_of, seconds_of, wait_for_run
from tests.support.segments.store_view import StoreView
from tests.support.services.link import Host, Link
from tests.support.services.processes import WITH_HELPERS, Command
from tests.support.torture.actor import TortureActor
from tests.support.torture.content import SCHEMA
from tests.support.torture.learner import TortureLearner
from tests.support.torture.ledger import Ledger
from tests.support.torture.proportions import Proportions
from tests.support.torture.service import ReplayProcess, check_store

Event = dict[str, Any]

CUTS = {
    "cut both ways": ("to_there", "to_here"),
    "nothing reaches the service": ("to_there",),
    "nothing leaves the service": ("to_here",),
}
DISTURBANCES: dict[str, dict[str, float]] = {
    "100 ms each way": {"delay_s": 0.1},
    "5% loss": {"loss": 0.05},
    "2 Mbit/s": {"bytes_per_s": 250e3},
}

_MULTIPLE = 10.0
_BACK_S = 5.0
"""Seconds of the product's own intervals in a return: at most 2 s for connecting, and 2 s between two streams."""

_NOTICED_S = 15.0 + 3.0 + 2.0
"""Seconds of the product's own timeouts in noticing a cut.

Both sides give up a silent peer after 15 s, and a client logs it 3 s later if it can't connect again. Messages in
flight add a retransmission.
"""

_CUT_S = 16.0
"""Shortest duration of a cut in seconds.

Intervals between attempts to connect have grown then, and an actor's place in the run has expired.
"""

_PORT = 7431
_CAPACITY_BYTES = 24 * 2**20
_WINDOWS = (1, 2, 4)
"""Segments per window of each actor."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A measured duration and its bound."""

    what: str
    seconds: float
    bound: Bound


@dataclass
class Seen:
    """Observations of a story.

    Attributes:
        violations: Violated guarantees about segments.
        durations: Durations with a bound.
        early: Log lines about lost peers before any link was cut.
        lines: Events about the loss of a peer, from the cut to the end, by side and link.
        checked: Segments whose every byte was compared, which proves that the check took place.
    """

    violations: list[str] = field(default_factory=list)
    durations: list[Duration] = field(default_factory=list)
    early: list[Event] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)
    checked: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a link, seen through its log.

    Attributes:
        name: Name of the side and its link.
        events: Returns the events of its log so far that concern the other side.
        gone, back: Kinds of events that report the other side as gone, or as back; one event of each kind is expected.
    """

    name: str
    events: Callable[[], list[Event]]
    gone: tuple[str, ...]
    back: tuple[str, ...]

    def has_logged(self, kinds: Sequence[str], after: int = 0) -> bool:
        """Returns whether each of these kinds ("a/b" for alternatives) is in the log after this number of events."""
        found = {event["event"] for event in self.events()[after:]}
        return all(found & set(kind.split("/")) for kind in kinds)


def client_side(name: str, events: Callable[[], list[Event]], address: str) -> Side:
    """Returns the side of a client that connects to this address."""

    def about_peer() -> list[Event]:
        return [each for each in events() if address in f"{each.get('reason')} {each.get('peer')}"]

    return Side(f"{name}, client", about_peer, ("trying again", "waiting for service"), ("service reached",))


def service_side(name: str, events: Callable[[], list[Event]], peer: str, **where: str) -> Side:
    """Returns the side of a service to which this kind of peer connects."""
    kinds = {f"{peer} joined", f"{peer} returned", f"{peer} left"}

    def about_peer() -> list[Event]:
        return [each for each in events() if each["event"] in kinds and where.items() <= each.items()]

    return Side(f"{name}, service", about_peer, (f"{peer} left",), (f"{peer} returned/{peer} joined",))


def play(links: dict[str, Link], cuts: Sequence[str], sides: Sequence[Side], progress: Callable[[], None]) -> Seen:
    """Applies each disturbance to all links, then cuts each link in its own way, and restores them.

    Args:
        links: Links by name.
        cuts: Kind of cut of each link, from `CUTS`.
        sides: Sides of all links.
        progress: Function that returns after data has passed over each link.
    """
    seen = Seen()
    progress()
    baseline = longest_of(progress, 5)
    before = {side.name: len(side.events()) for side in sides}

    def restore_after(what: str) -> None:
        for link in links.values():
            link.mend()
        seen.durations.append(Duration(f"back after {what}", seconds_of(progress), Bound(_MULTIPLE, baseline, _BACK_S)))

    for what, values in DISTURBANCES.items():
        for link in links.values():
            link.set(**values)
        progress()
        progress()
        restore_after(what)
    seen.early = [event for side in sides for event in side.events()[before[side.name] :]]
    if seen.early:
        # Sides that lose each other on links that are not cut might never log the loss below.
        return seen
    cut_at = time.monotonic()
    for link, kind in zip(links.values(), cuts, strict=True):
        link.cut(*CUTS[kind])

    def all_have_logged(kinds: Callable[[Side], Sequence[str]]) -> bool:
        return all(side.has_logged(kinds(side), before[side.name] + len(seen.early)) for side in sides)

    noticed = seconds_of(
        lambda: wait_for_run(lambda: all_have_logged(lambda side: side.gone), f"both sides to notice {cuts}")
    )
    seen.durations.append(Duration("both sides notice", noticed, Bound(_MULTIPLE, baseline, _NOTICED_S)))
    time.sleep(max(0.0, cut_at + _CUT_S - time.monotonic()))
    restore_after(", ".join(cuts))
    wait_for_run(
        lambda: all_have_logged(lambda side: side.back), f"both sides to log the return of the other after {cuts}"
    )
    for side in sides:
        seen.lines[side.name] = [event["event"] for event in side.events()[before[side.name] :]]
    return seen


def _log_of(command: Command) -> list[Event]:
    return read_log(command.stderr)


def read_log(text: str) -> list[Event]:
    """Returns the events of a service's log, without an incomplete last line."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


class _Replay:
    """A replay service on another host, with a learner and actors here, each over a separate link."""

    def __init__(self, folder: Path, stack: ExitStack, actors: int) -> None:
        self.ledger, self._proportions = Ledger(), Proportions(np.random.default_rng(0))
        host = stack.enter_context(Host())
        self.learner_link, *self.actor_links = (host.link() for _ in range(1 + actors))
        self.service = ReplayProcess(
            folder / "store",
            _CAPACITY_BYTES,
            self.ledger,
            host=host,
            address=self._address(self.learner_link),
            # Memory shared by both hosts would bypass the links.
            options=["--replay.staging-bytes=0"],
        )
        RingStore(self.service.folder, _CAPACITY_BYTES).adopt(SCHEMA)
        self.service.start()
        stack.callback(self._kill)
        assert self.service.wait_until_ready() is not None, self.service.last_words
        self.service.hide()
        self._thread = LoopThread()
        stack.callback(self._thread.close)
        self.plan = SamplingPlan(
            session=secrets.randbits(62) | 1,
            next_batch=0,
            batch_segments=8,
            fresh_segments=4,
            off_policy_degree=3,
            publish_interval=2,
            alpha=0.6,
            epsilon=1e-3,
            half_life=200.0,
            max_staleness=2**31,
            min_replay_segments=4,
            seed=1,
        )
        self.learner = TortureLearner(
            self.service.address,
            SCHEMA,
            self.plan,
            self.ledger,
            self._proportions,
            dict(enumerate(_WINDOWS)),
            prefetch=1,
            oldest=_CAPACITY_BYTES // SCHEMA.segment_bytes // self.plan.fresh_segments + 64,
        )
        stack.callback(self.learner.die)
        self.actors = [
            TortureActor(
                self._thread,
                self._address(link),
                self.ledger,
                lambda: self.learner.published,
                slot=slot,
                incarnation=1,
                segments=_WINDOWS[slot],
                seed=slot,
            )
            for slot, link in enumerate(self.actor_links)
        ]
        for actor in self.actors:
            stack.callback(actor.die)

    def progress(self) -> None:
        """Waits for the next batch, and for another window of each actor."""
        version, sent = self.learner.version, self._sent()

        def more() -> bool:
            windows = all(now > then for now, then in zip(self._sent(), sent, strict=True))
            return (windows and self.learner.version > version) or bool(self.ledger.violations)

        wait_for_run(more, "the next batch", poll_s=0.005)

    def events(self) -> list[Event]:
        """Returns the service's log."""
        return read_log(self.service.log)

    def end(self, seen: Seen) -> Seen:
        """Waits until everything in flight has arrived; then accounts for all segments."""
        for actor in self.actors:
            actor.leave()
        self.learner.leave()
        self._kill()
        found = check_store(self.service, self.ledger, self.plan)
        for (slot, incarnation), stay in self.ledger.stays.items():
            if stay.stored != stay.sent:
                self.ledger.violated(
                    f"slot {slot} incarnation {incarnation}: {stay.sent} segments were sent, {stay.stored} are stored"
                )
        seen.violations = self.ledger.violations
        seen.checked = found.segments if found is not None else 0
        return seen

    def _kill(self) -> None:
        if self.service.running:
            self.service.kill()

    def _sent(self) -> list[int]:
        with self.ledger.lock:
            stays = self.ledger.stays
            return [stays[slot, 1].sent if (slot, 1) in stays else 0 for slot in range(len(_WINDOWS))]

    @staticmethod
    def _address(link: Link) -> str:
        return f"{link.there}:{_PORT}"


def actors_and_replay(folder: Path, events: list[Event]) -> Seen:
    """Runs three actors whose links are cut in three ways at once, so that no batch is complete.

    Args:
        folder: Folder of the service.
        events: Log of this process, to which the clients write.
    """
    with ExitStack() as stack:
        replay = _Replay(folder, stack, len(CUTS))
        links = {f"actor {slot}": link for slot, link in enumerate(replay.actor_links)}
        sides = []
        for slot, (name, link) in enumerate(links.items()):
            sides.append(client_side(name, lambda: events, f"{link.there}:{_PORT}"))
            sides.append(service_side(name, replay.events, "actor", slot=str(slot)))
        return replay.end(play(links, list(CUTS), sides, replay.progress))


def learner_and_replay(folder: Path, events: list[Event], cut: str) -> Seen:
    """Runs a learner whose link is cut in one way; the arguments are those of `actors_and_replay`."""
    with ExitStack() as stack:
        replay = _Replay(folder, stack, len(_WINDOWS))
        link = replay.learner_link
        sides = [
            client_side("learner", lambda: events, f"{link.there}:{_PORT}"),
            service_side("learner", replay.events, "learner"),
        ]
        return replay.end(play({"learner": link}, [cut], sides, replay.progress))


_SETTINGS = """
[environment]
id = "Paced-v0"
imports = ["tests.support.environments.paced"]
[environment.kwargs]
pause_s = 0.005
[run]
dir = "{run}"
total_steps = 1_000_000_000
[security]
insecure = true
[replay]
listen = "0.0.0.0:7431"
advertise = ["{host}"]
metrics_port = 0
folder = "{store}"
capacity_bytes = 2_000_000
[learner]
listen = "0.0.0.0:7432"
metrics_port = 0
replay_addresses = ["{host}:7431"]
[actor]
listen = "127.0.0.1:0"
metrics_port = 0
environments = 4
unroll_length = 8
[sampling]
batch_segments = 24
fresh_fraction = 0.5
off_policy_degree = 3
[evaluation]
listen = "127.0.0.1:0"
metrics_port = 0
episodes = 1
interval_steps = 200
"""
"""Every window has 8 steps of 5 ms, so that the services have time for all of them and the CPU is nearly idle."""


class _Run:
    """A learner and its replay service on another host, with actors and an evaluator here."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        host = stack.enter_context(Host())
        sound = host.link()
        self.links = {name: host.link() for name in ("0", "1", "2", "evaluator")}
        settings = folder / "settings.toml"
        text = _SETTINGS.format(run=folder / "run", store=folder / "store", host=sound.there)
        settings.write_text(text)

        def start(service: str, *options: str, on: Host | None = None) -> Command:
            command = Command(
                service, f"--config={settings}", *options, environment=WITH_HELPERS, directory=folder, host=on
            )
            return stack.enter_context(command)

        self._folder, self._versions = folder, [0]
        self.learner = start("learner", on=host)
        self._replay = start("replay", on=host)
        self.clients: dict[str, tuple[Command, str]] = {}
        for name, link in self.links.items():
            address = f"{link.there}:7432"
            if name == "evaluator":
                command = start("evaluator", f"--evaluation.learner-address={address}")
            else:
                command = start("actor", f"--actor.learner-address={address}")
            self.clients[name] = command, address
        thread = LoopThread()
        stack.callback(thread.close)
        self._status = StatusClient(thread, f"{sound.there}:7432")
        stack.callback(self._status.close)
        wait_for_run(lambda: self._is_on(0, 0), "training with three actors and an evaluator")

    def progress(self) -> None:
        """Waits for a version that is trained with all three actors, and for an evaluation of a later one."""
        before = self._look()
        evaluated = before.last_evaluation.version if before.last_evaluation else 0
        wait_for_run(lambda: self._is_on(before.version, evaluated), "the next version and its evaluation")

    def events(self) -> list[Event]:
        """Returns the learner's log."""
        return read_log(self.learner.stderr)

    def end(self, seen: Seen) -> Seen:
        """Stops the replay service; checks that its store holds the last segments of each stay, without gaps."""
        self._replay.terminate()
        self._replay.wait()
        state = StoreView(self._folder / "store").read()
        for (slot, incarnation), mark in state.marks.items():
            own = state.headers[(state.headers["slot"] == slot) & (state.headers["incarnation"] == incarnation)]
            sequences = own["sequence"][np.argsort(own["key"])].astype(np.int64)
            if own.size and (sequences != np.arange(mark - own.size + 1, mark + 1)).any():
                seen.violations.append(f"slot {slot} incarnation {incarnation} has {sequences} up to {mark}")
            seen.checked += own.size
        if self._versions != sorted(self._versions):
            seen.violations.append(f"versions decreased: {self._versions}")
        return seen

    def _look(self) -> RunStatus:
        status = self._status.get(PATIENCE_S)
        self._versions.append(status.version)
        return status

    def _is_on(self, version: int, evaluated: int) -> bool:
        try:
            now = self._look()
        except Unavailable:
            return False
        evaluation = now.last_evaluation
        return now.version > version and now.actors == 3 and evaluation is not None and evaluation.version > evaluated


def run_and_its_learner(folder: Path) -> Seen:
    """Runs three actors and an evaluator whose links to the learner are cut at once, so that nothing is trained."""
    with ExitStack() as stack:
        run = _Run(folder, stack)
        sides = []
        for name, (command, address) in run.clients.items():
            sides.append(client_side(name, functools.partial(_log_of, command), address))
            if name != "evaluator":
                sides.append(service_side(name, run.events, "actor", actor=f"{socket.gethostname()}:{command.pid}"))
        sides.append(service_side("evaluator", run.events, "evaluator"))
        return run.end(play(run.links, [*CUTS, "cut both ways"], sides, run.progress))


@contextmanager
def captured_log() -> Iterator[list[Event]]:
    """Captures the log of this process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as events:
        yield events  # type: ignore[misc]
    structlog.reset_defaults()
