"""A learner process that loses its replay service permanently during training."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.acting.values.spaces import segment_schema
from penstock.replay.admission import Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.description import read_description
from penstock.replay.store.ring_store import RingStore
from penstock.runs.folder import RunFolder
from penstock.types.block import Schema
from tests.support.environments.made import make_environments
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, Ended, end_of
from tests.support.services.servers import plan_with

pytestmark = pytest.mark.nightly

UNROLL_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Lost:
    """The result of the learner, and its folder."""

    end: Ended
    folder: RunFolder


Loss = Callable[[Command, str, Path], AbstractContextManager[None]]
"""Context manager for a loss, called with the replay service, its address and the settings of the run."""


def schema() -> Schema:
    return segment_schema(make_environments("CartPole-v1", 1, kwargs={}).spec, UNROLL_LENGTH)


@contextlib.contextmanager
def another_learner(replay: Command, address: str, settings: Path) -> Iterator[None]:
    """Lets another learner take over the store while this one is not connected."""
    replay.kill()
    replay.wait()
    folder = settings.parent / "store"
    store = RingStore(folder, read_description(folder).capacity_bytes)
    plan = plan_with(next_batch=1_000_000, run=store.owner.run)
    ReplayBuffer(store, Gate(3600.0, 8)).adopt_plan(plan, store.owner.key)
    store.flush()
    with Command("replay", f"--config={settings}", directory=settings.parent):
        yield


@contextlib.contextmanager
def smaller_store(replay: Command, address: str, settings: Path) -> Iterator[None]:
    """Restarts the service with a store that is too small for the learner's batches."""
    folder, capacity_bytes = settings.parent / "smaller", 65_536
    store = RingStore(folder, capacity_bytes)
    # It already has the segments' schema, so it refuses the learner even before an actor connects.
    store.adopt(schema())
    store.flush()
    replay.kill()
    replay.wait()
    options = [f"--replay.folder={folder}", f"--replay.capacity-bytes={capacity_bytes}"]
    with Command("replay", f"--config={settings}", *options, directory=settings.parent):
        yield


@pytest.fixture(scope="module")
def lost(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lost:
    lose: Loss = request.param
    place = tmp_path_factory.mktemp("lost")
    replay, learner = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = place / "settings.toml"
    settings.write_text(
        f"""
[environment]
id = "CartPole-v1"
[run]
dir = "{place / "run"}"
[replay]
listen = "{replay}"
metrics_port = 0
folder = "{place / "store"}"
[learner]
listen = "{learner}"
metrics_port = 0
replay_addresses = ["{replay}"]
[actor]
learner_address = "{learner}"
listen = "127.0.0.1:0"
metrics_port = 0
unroll_length = {UNROLL_LENGTH}
[sampling]
batch_segments = 256
[checkpoint]
save_interval = 1
"""
    )
    folder, config = RunFolder(place / "run"), f"--config={settings}"
    with (
        Command("replay", config, directory=place) as service,
        Command("learner", config, directory=place) as command,
        Command("actor", config, directory=place),
    ):
        command.until(folder.numbered_checkpoints, "a checkpoint")
        with lose(service, replay, settings):
            return Lost(end_of(command), folder)


@pytest.mark.parametrize(
    ("lost", "reason"),
    [(another_learner, "trained up to version 1000000"), (smaller_store, "capacity")],
    indirect=["lost"],
)
def test_the_learner_gives_up_with_one_line_and_removes_nothing_of_its_run(lost: Lost, reason: str) -> None:
    assert lost.end.code == 3
    assert "Traceback" not in lost.end.stderr
    *_, last = lost.end.stderr.splitlines()
    assert last.startswith("penstock: ")
    assert reason in last
    assert lost.folder.config.exists()
    assert lost.folder.numbered_checkpoints()
