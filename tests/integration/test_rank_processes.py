"""A learner of two ranks under torchrun, over gloo: what it learns, and what happens when a rank is killed."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch._C._distributed_c10d import TCPStore

from penstock.learning.durable import checkpoints
from penstock.rpc import methods
from penstock.runs.folder import RunFolder
from penstock.v1 import replay_pb2
from tests.support.machine.timing import start_patience_s
from tests.support.services.ports import free_ports
from tests.support.services.processes import PENSTOCK, Command, end_in_time, end_of
from tests.support.services.servers import Loopback

pytestmark = pytest.mark.nightly

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
ONE_RANK = (PENSTOCK,)
TWO_RANKS = (TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=3", "-m", "penstock")
HOST = "127.0.0.1"
ENVIRONMENTS, STEPS = 16, 32
BATCHES = 8

ROUNDING = 2e-6
"""Largest difference of a parameter, whose last bit is 1e-7 at 1, after steps that move some by more than 0.05.

Actions are choices, so rounding changes no action, and both runs train on the same bits."""

EXACT = (
    "--env-id=CartPole-v1",
    "--seed=11",
    f"--envs-per-actor={ENVIRONMENTS}",
    f"--actor.unroll-length={STEPS}",
    f"--sampling.batch-segments={ENVIRONMENTS}",
    "--sampling.off-policy-degree=0",
    "--sampling.fresh-fraction=1",
    "--ppo.epochs=4",
    "--ppo.minibatches=3",
    "--evaluation.interval-steps=1000000",
)


UNDER_LOAD = (
    "--env-id=CartPole-v1",
    "--total-steps=10000000",
    "--evaluation.interval-steps=10000000",
    "--checkpoint.save-interval=2000",
    "--replay.capacity-bytes=1GiB",
)


@dataclass(frozen=True, slots=True)
class Running:
    """A run whose services were started one by one."""

    learner: Command
    folder: RunFolder
    loopback: Loopback
    replay_address: str
    learner_address: str

    def replay(self) -> replay_pb2.GetReplayStatusResponse:
        request = replay_pb2.GetReplayStatusRequest()
        status = self.loopback.ask(self.replay_address, methods.GET_REPLAY_STATUS, request)
        assert isinstance(status, replay_pb2.GetReplayStatusResponse)
        return status

    def pids(self) -> dict[int, int]:
        """Returns the process ids of the ranks that are alive, by rank."""
        found = {}
        for process in self.learner.family():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                variables = process.environ()
                if "TORCHELASTIC_RUN_ID" in variables:
                    found[int(variables["RANK"])] = process.pid
        return found


def resumed_from(output: str) -> list[str | None]:
    """Returns the checkpoint from which each session of the learner after the first began."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [event["resumed_from"] for event in events if event["event"] == "serving"][1:]


@contextmanager
def running(folder: Path, program: Sequence[str], *options: str, actors: int = 1) -> Iterator[Running]:
    """Starts replay service, learner and actors. `program` starts the learner."""
    of_replay, of_learner = free_ports(2)
    run = RunFolder(folder / "run")
    given = [*options, "--replay.metrics-port=0", "--learner.metrics-port=0", "--actor.metrics-port=0"]
    given += [f"--replay.listen={HOST}:{of_replay}", f"--learner.listen={HOST}:{of_learner}"]
    given += [f"--learner.replay-addresses={HOST}:{of_replay}", f"--actor.learner-address={HOST}:{of_learner}"]
    given += [f"--learner.rank-timeout-s={start_patience_s()}"]
    with ExitStack() as stack:
        stack.enter_context(Command("replay", *given, f"--replay.folder={folder / 'store'}"))
        learner = stack.enter_context(Command("learner", *given, f"--run-dir={run.root}", program=program))
        for _ in range(actors):
            stack.enter_context(Command("actor", *given, "--actor.listen=127.0.0.1:0"))
        loopback = stack.enter_context(Loopback())
        yield Running(learner, run, loopback, f"{HOST}:{of_replay}", f"{HOST}:{of_learner}")


def trained(folder: Path, program: Sequence[str], *options: str) -> dict[str, torch.Tensor]:
    """Trains for some batches. Returns the checkpoint, whose evaluation is not awaited."""
    # The last batch begins before these, and ends after, although rows that reset are not counted.
    steps = ENVIRONMENTS * STEPS * (BATCHES - 1)
    with running(folder, program, *EXACT, *options, f"--total-steps={steps}") as run:
        path = run.learner.until(lambda: checkpoints.newest(run.folder), "the last checkpoint")
        assert path is not None and checkpoints.read_progress(path).version == BATCHES
        return load_file(path)


@pytest.mark.parametrize("execution", ["auto", "eager"])
def test_two_ranks_learn_what_one_learns_through_all_services(tmp_path: Path, execution: str) -> None:
    option = f"--learner.execution={execution}"
    one, two = (trained(tmp_path / name, program, option) for name, program in (("one", ONE_RANK), ("two", TWO_RANKS)))
    assert one.keys() == two.keys()
    for name, values in one.items():
        # What does not follow from a gradient is equal bit for bit: both trained on the same data in the same order.
        of_gradients = name.startswith(("actor", "critic", "optimizer/0/exp"))
        torch.testing.assert_close(two[name], values, rtol=0.0, atol=ROUNDING if of_gradients else 0.0)


@pytest.mark.parametrize("rank", [1, 0])
def test_a_run_resumes_after_a_rank_is_killed_under_load(tmp_path: Path, rank: int) -> None:
    with running(tmp_path, TWO_RANKS, *UNDER_LOAD, actors=2) as run:
        killed = run.learner.until(lambda: found if len(found := run.pids()) == 2 else {}, "two ranks")
        run.learner.until(lambda: run.replay().version >= 10, "the first batches")
        seen = [run.replay()]
        os.kill(killed[rank], signal.SIGKILL)

        def trains_again() -> bool:
            seen.append(run.replay())
            ranks = run.pids()
            return (
                len(ranks) == 2
                and not set(ranks.values()) & set(killed.values())
                and resumed_from(run.learner.stderr) != []
            )

        run.learner.until(trains_again, "the ranks of the next session")
        version = seen[-1].version
        run.learner.until(lambda: trains_again() and seen[-1].version > version + 10, "further batches")
        run.learner.terminate()
        end = end_in_time(run.learner)
    assert end.left_behind == []
    versions, inserted = [each.version for each in seen], [each.counts.inserted for each in seen]
    assert versions == sorted(versions) and inserted == sorted(inserted)
    counts = seen[-1].counts
    # The store has room for all, so that a segment that is not in it would be lost.
    assert (counts.stored, counts.refused) == (counts.inserted, 0)
    (line,) = [line for line in end.stderr.splitlines() if line.startswith("penstock: ")]
    assert line.startswith(f"penstock: rank {1 - rank} of the learner can't continue without")
    assert resumed_from(end.stderr) != [None]
    newest = checkpoints.newest(run.folder)
    assert newest is not None and checkpoints.read_progress(newest).version > versions[0]


def test_ranks_end_with_the_run(tmp_path: Path) -> None:
    with running(tmp_path, TWO_RANKS, *EXACT, "--total-steps=1000", "--evaluation.episodes=1") as run:
        address = f"--evaluation.learner-address={run.learner_address}"
        with Command("evaluator", *EXACT, address, "--evaluation.listen=127.0.0.1:0", "--evaluation.metrics-port=0"):
            end = end_of(run.learner)
    assert end.code == 0, end.stderr
    assert end.left_behind == []
    assert "penstock: " not in end.stderr


@pytest.mark.parametrize("rank", [1, 0])
def test_a_signal_ends_a_rank_that_waits_for_the_others(rank: int) -> None:
    (port,) = free_ports(1)
    store = TCPStore(HOST, port, is_master=True, wait_for_workers=False)
    # Rank 0 asks nothing: it waits until it has answered the question of rank 1.
    if rank == 0:
        store.set("question of 1", "one")
    meeting = {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    of_agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    options = (
        f"--learner.rank-timeout-s={start_patience_s()}",
        "--learner.metrics-port=0",
        f"--learner.listen={HOST}:0",
    )
    with Command("learner", *options, environment={**meeting, **of_agent}) as learner:
        asked = "answer to 1" if rank == 0 else "question of 1"
        learner.until(lambda: store.check([asked]), f"rank {rank} to wait for the other")
        learner.terminate()
        end = end_in_time(learner)
    (line,) = [line for line in end.stderr.splitlines() if line.startswith("penstock: ")]
    assert line == f"penstock: rank {rank} of the learner was stopped before it met the others, 2 in all"
    assert (end.code, end.left_behind) == (1, [])
