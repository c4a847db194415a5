"""The ends of individually started services, as a batch system or an engine of containers sees them.

The learner of one run is stopped, killed and replaced while the others go on, and ends the run at last. A learner, an
actor and an evaluator that start after the end have nothing to do.
"""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import BY_SIGNAL
from penstock.learning.durable import checkpoints
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import Bound
from tests.support.services.ports import free_ports
from tests.support.services.processes import WITH_HELPERS, Command, Ended, end_of

pytestmark = pytest.mark.nightly

OTHERS = ("replay", "actor", "actor", "evaluator")
FAR = 10_000_000


@dataclass(frozen=True, slots=True)
class Ends:
    """What the services of the run did.

    Attributes:
        learners: The learners that were stopped, killed, and that ended the run.
        alive: Numbers of the others that were alive after each of the first two had ended.
        others: The others, when the run had ended.
        others_s: Seconds from the learner's end to the last of the others'.
        bound: Bound of these seconds.
        late: A learner, an actor and an evaluator that started after the end.
        told: Lines that the command of `run.on_end` wrote.
    """

    learners: list[Ended]
    alive: list[int]
    others: list[Ended]
    others_s: float
    bound: Bound
    late: list[Ended]
    told: list[str]


def settings_in(place: Path) -> Path:
    """Writes the settings that all services share."""
    replay, learner = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = place / "settings.toml"
    settings.write_text(
        f"""
[environment]
id = "Paced-v0"
imports = ["tests.support.environments.paced"]
[run]
dir = "{place / "run"}"
total_steps = {FAR}
on_end = 'echo "$PENSTOCK_RUN_REASON $PENSTOCK_RUN_NAME $PENSTOCK_RUN_EXIT_CODE" >> "{place / "told"}"'
[replay]
listen = "{replay}"
folder = "{place / "store"}"
stop_with_run = true
metrics_port = "auto"
[learner]
listen = "{learner}"
replay_addresses = ["{replay}"]
metrics_port = "auto"
[actor]
learner_address = "{learner}"
environments = 8
[evaluation]
learner_address = "{learner}"
episodes = 5
interval_steps = 5_000
[ppo]
epochs = 1
[checkpoint]
save_interval = 1_000
"""
    )
    return settings


class Services:
    """Commands with the settings of one run, until the stack is closed."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self.folder, self._place = RunFolder(place / "run"), place
        self._stack, self._settings = stack, settings_in(place)

    def start(self, name: str, *options: str) -> Command:
        command = Command(name, f"--config={self._settings}", *options, environment=WITH_HELPERS, directory=self._place)
        return self._stack.enter_context(command)

    def trained_to(self) -> int:
        """Returns the steps of the newest checkpoint; 0 if there is none."""
        newest = checkpoints.newest(self.folder)
        return checkpoints.read_progress(newest).env_steps if newest is not None else 0

    def train(self, *options: str) -> Command:
        """Starts a learner, and waits until it has saved a checkpoint of its own."""
        before, learner = self.trained_to(), self.start("learner", *options)
        learner.until(lambda: self.trained_to() > before, "a further checkpoint")
        return learner


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    with ExitStack() as stack:
        services = Services(stack, tmp_path_factory.mktemp("ends"))
        others = [services.start(name) for name in OTHERS]
        learners, alive, started_at = list[Ended](), list[int](), time.monotonic()
        for number in (signal.SIGTERM, signal.SIGKILL):
            learner = services.train()
            learner.process.send_signal(number)
            learners.append(end_of(learner))
            alive.append(sum(other.process.poll() is None for other in others))
        # An end imports nothing and trains nothing; a service gives its peers some seconds to answer.
        bound = Bound(1.0, time.monotonic() - started_at, 10.0)
        # The last learner trains on what the others have collected and stored.
        learner = services.start("learner", f"--total-steps={services.trained_to() + 5_000}")
        learners.append(end_of(learner))
        ended_at = time.monotonic()
        ended = [end_of(other) for other in others]
        others_s = time.monotonic() - ended_at
        run = f"{services.folder.root}"
        late = [
            services.start("learner", f"--total-steps={services.trained_to()}"),
            services.start("actor", f"--actor.run={run}"),
            services.start("evaluator", f"--evaluation.run={run}"),
        ]
        after = [end_of(each) for each in late]
        told = (services.folder.root.parent / "told").read_text().splitlines()
        yield Ends(learners, alive, ended, others_s, bound, after, told)


def test_a_learner_that_is_stopped_or_killed_does_not_end_the_others(ends: Ends) -> None:
    stopped, killed, _ = ends.learners
    assert (stopped.code, killed.code) == (BY_SIGNAL + signal.SIGTERM, -signal.SIGKILL)
    assert ends.alive == [len(OTHERS)] * 2


def test_the_end_of_the_run_ends_all_services_with_code_0_in_seconds(ends: Ends) -> None:
    assert ends.learners[-1].code == 0, ends.learners[-1].stderr
    assert [other.code for other in ends.others] == [0] * len(OTHERS), [other.stderr[-500:] for other in ends.others]
    assert all(other.left_behind == [] for other in ends.others)
    assert ends.others_s < ends.bound.seconds, ends.bound


def test_the_learner_tells_of_the_end_once_and_of_no_stop(ends: Ends) -> None:
    assert ends.told == ["total_steps run 0"]


@pytest.mark.parametrize("index", range(3), ids=["learner", "actor", "evaluator"])
def test_a_service_that_starts_after_the_end_of_the_run_ends_with_code_0(ends: Ends, index: int) -> None:
    assert ends.late[index].code == 0, ends.late[index].stderr
    assert "Traceback" not in ends.late[index].stderr


def test_the_replay_service_logs_that_the_run_is_finished(ends: Ends) -> None:
    events = [json.loads(line)["event"] for line in ends.others[0].stderr.splitlines()]
    assert events.count("run finished") == 1 and events[-1] == "stopped"
