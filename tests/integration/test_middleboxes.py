"""Connections without messages, through a middlebox that forgets idle connections, and over links cut in one direction.

Training pauses while an evaluator plays: its stream to the learner carries nothing but keepalive for twenty
seconds, and the actor's nothing but signs of life.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.types.status import RunStatus
from tests.support.machine.timing import PATIENCE_S, Bound, longest_of, seconds_of, wait_for_run
from tests.support.services.link import Host, unavailable
from tests.support.services.link_stories import Event, read_log
from tests.support.services.processes import WITH_HELPERS, Command

FORGETS_AFTER_S = 8.0
"""Longer than the interval of keepalive, 5 s, and shorter than an evaluation."""

TOO_SOON_S = 2.0
"""Shorter than the interval of keepalive, and longer than that of actors' heartbeats."""

EVALUATION_S = 20.0
STEPS = 50
"""Steps of an episode of Paced-v0."""

NOTICED_S = 15.0 + 3.0 + 2.0
"""Seconds in which both sides give up a silent peer, and a client reports that it can't connect again."""

SETTINGS = """
[environment]
id = "Paced-v0"
imports = ["tests.support.environments.paced"]
[run]
dir = "{folder}/run"
total_steps = 1_000_000_000
[security]
insecure = true
[replay]
listen = "0.0.0.0:7431"
advertise = ["{host}"]
metrics_port = 0
folder = "{folder}/store"
capacity_bytes = 2_000_000
[learner]
listen = "0.0.0.0:7432"
metrics_port = 0
replay_addresses = ["127.0.0.1:7431"]
[actor]
metrics_port = 0
learner_address = "{host}:7432"
environments = 4
unroll_length = 8
[sampling]
batch_segments = 16
fresh_fraction = 0.5
[evaluation]
metrics_port = 0
learner_address = "{host}:7432"
mode = "synchronous"
episodes = 1
interval_steps = 200
"""

pytestmark = pytest.mark.nightly


@dataclass
class Seen:
    """Observations of the run.

    Attributes:
        quiet: Events about lost peers while the middlebox forgot connections later than keepalive.
        kept: Connections that it forgot in that time.
        noticed: Seconds until both sides had noticed each loss of the evaluator's connection, by its cause.
        bound: Bound of these seconds.
        evaluations: Version of the evaluation after each of these times.
    """

    bound: Bound
    quiet: list[Event] = field(default_factory=list)
    kept: int = 0
    noticed: dict[str, float] = field(default_factory=dict)
    evaluations: list[int] = field(default_factory=list)


class Run:
    """A learner and its replay service on another host, with an actor and an evaluator here."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        host = stack.enter_context(Host())
        self.link, direct = host.link(), host.link()
        settings = folder / "settings.toml"
        settings.write_text(SETTINGS.format(folder=folder, host=self.link.there))

        def start(service: str, *options: str, on: Host | None = None) -> Command:
            command = Command(
                service, f"--config={settings}", *options, environment=WITH_HELPERS, directory=folder, host=on
            )
            return stack.enter_context(command)

        self.learner, self._replay = start("learner", on=host), start("replay", on=host)
        self._actor = start("actor")
        self.evaluator = start("evaluator", f"--environment.kwargs=pause_s={EVALUATION_S / STEPS}")
        thread = stack.enter_context(closing(LoopThread()))
        self._status = stack.enter_context(closing(StatusClient(thread, f"{direct.there}:7432")))
        for peer in ("actor", "evaluator"):
            wait_for_run(partial(self._count, self.learner, f"{peer} joined"), f"the {peer} to join")

    def status(self) -> RunStatus:
        """Returns the run's status, by another link."""
        return self._status.get(PATIENCE_S)

    def evaluate(self) -> int:
        """Waits for the next evaluation; returns its version."""
        before = self._evaluated()
        return wait_for_run(
            lambda: max(self._evaluated(), before) if self._evaluated() > before else None, "an evaluation"
        )

    def losses(self) -> list[Event]:
        """Returns the events about a lost peer so far."""
        commands = (self.learner, self._replay, self._actor, self.evaluator)
        events = [event for command in commands for event in read_log(command.stderr)]
        return [
            event
            for event in events
            if event["event"] in ("trying again", "waiting for service", "evaluator left", "actor left")
        ]

    def await_play(self) -> None:
        """Waits until training pauses for an evaluation."""
        wait_for_run(lambda: self.status().phase == "evaluating", "an evaluation to begin")

    def await_loss(self) -> None:
        """Waits until the evaluator and the learner have logged another loss of each other."""
        before = [self._count(self.evaluator, "trying again"), self._count(self.learner, "evaluator left")]

        def noticed() -> bool:
            now = [self._count(self.evaluator, "trying again"), self._count(self.learner, "evaluator left")]
            return all(count > former for count, former in zip(now, before, strict=True))

        wait_for_run(noticed, "both sides to notice")

    def _evaluated(self) -> int:
        evaluation = self.status().last_evaluation
        return evaluation.version if evaluation is not None else 0

    @staticmethod
    def _count(command: Command, kind: str) -> int:
        return sum(event["event"] == kind for event in read_log(command.stderr))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    if reason := unavailable():
        pytest.skip(reason)
    with ExitStack() as stack:
        run = Run(tmp_path_factory.mktemp("middlebox"), stack)
        box = run.link.middlebox
        box.forgets_after_s = FORGETS_AFTER_S
        # Clients that started before their services have logged that they waited.
        seen, started = Seen(Bound(10.0, longest_of(run.status), NOTICED_S)), run.losses()
        seen.evaluations.append(run.evaluate())
        seen.quiet, seen.kept = [event for event in run.losses() if event not in started], box.forgotten

        run.await_play()
        time.sleep(1.0)
        box.forgets_after_s = TOO_SOON_S
        wait_for_run(lambda: box.forgotten > seen.kept, "the middlebox to forget a connection")
        seen.noticed["forgotten"] = seconds_of(run.await_loss)
        box.forgets_after_s = FORGETS_AFTER_S
        seen.evaluations.append(run.evaluate())

        for direction in ("to_here", "to_there"):
            run.await_play()
            run.link.cut(direction)
            seen.noticed[direction] = seconds_of(run.await_loss)
            run.link.mend()
            seen.evaluations.append(run.evaluate())
        yield seen


def test_keepalive_keeps_quiet_connections_alive_in_a_middlebox_that_forgets_idle_ones(seen: Seen) -> None:
    assert seen.quiet == []
    assert seen.kept == 0


def test_both_sides_of_a_quiet_stream_notice_in_time_that_it_is_dead(seen: Seen) -> None:
    assert list(seen.noticed) == ["forgotten", "to_here", "to_there"]
    assert all(seconds < seen.bound.seconds for seconds in seen.noticed.values()), (seen.noticed, str(seen.bound))


def test_the_run_goes_on_after_each_loss(seen: Seen) -> None:
    assert len(seen.evaluations) == 4
    assert seen.evaluations == sorted(set(seen.evaluations))
