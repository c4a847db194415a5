"""`penstock track`, read back by the readers of W&B, MLflow and Trackio."""

import itertools
import json
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.cli.commands import track
from penstock.config import build
from penstock.config.code_names import TRACKERS
from penstock.errors import ConfigurationError, PenstockError
from penstock.learning.durable.journal import Journal, thinned
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import records_of, tag_of
from penstock.tracking import following
from penstock.tracking.following import CommittedRecords, Mark, Tracker, follow, only_sender
from penstock.tracking.trackers import TrackedRun, open_tracker
from tests.support.services.processes import Command, Ended, end_of

STEPS_PER_CHECKPOINT = 100


class SimulatedRun:
    """The files that a run writes, without its training."""

    def __init__(self, root: Path) -> None:
        self.folder = RunFolder(root)
        self.folder.create()
        self.folder.config.write_text(build({"ppo": {"learning_rate": 0.002}}).to_toml())
        self.folder.services.write_text("{}")
        self.steps = self.version = 0

    def resume(self) -> None:
        """Begins a session, which drops the records after the newest checkpoint."""
        self.journal = Journal(self.folder.metrics, writes=RetriedWrites(print), notice=print)
        self.steps = self.folder.newest_checkpoint_steps() or 0
        self.journal.resume(self.steps)
        self.resumed_at = self.steps

    def train(self, steps: int) -> None:
        """Adds a record for every 10 steps, a checkpoint for every 100, and an evaluation that is answered later."""
        for _ in range(steps // 10):
            self.steps += 10
            self.version += 1
            numbers = {"training_s": self.steps / 1000.0, "policy_loss": float(self.version), "entropy": None}
            self.journal.write(Record("training", self.steps, numbers))
            if self.steps % STEPS_PER_CHECKPOINT == 0:
                self.folder.checkpoint(self.steps).touch()
            at = self.steps - 70
            # A session evaluates no policy of an earlier one.
            if at % STEPS_PER_CHECKPOINT == 80 and at > self.resumed_at:
                numbers = {"training_s": at / 1000.0, "return_mean": float(self.version), "entropy": None}
                self.journal.write(Record("evaluation", at, numbers))

    def end(self) -> None:
        self.folder.checkpoint(self.steps).touch()
        self.journal.write(Record("final_evaluation", self.steps, {"training_s": 1.0, "return_mean": 1.5}))
        self.folder.services.unlink()

    @property
    def recorded(self) -> dict[str, list[tuple[int, float]]]:
        """Steps and values of the journal by the name of the number."""
        found: dict[str, list[tuple[int, float]]] = {}
        for record in records_of(self.folder.metrics):
            for name in record.keys() - {"kind", "env_steps"}:
                if record[name] is not None:
                    found.setdefault(tag_of(record["kind"], name), []).append((record["env_steps"], record[name]))
        return found


def of_wandb(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Reads the only file that W&B keeps: a log of LevelDB, in blocks of 32 kB, of its own messages."""
    from wandb.proto.wandb_internal_pb2 import Record as Message  # type: ignore[attr-defined]

    (path,) = folder.wandb.glob("offline-run-*/*.wandb")
    data, position, whole, rows = path.read_bytes(), 7, b"", list[dict[str, Any]]()
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        # Whole or last part of a message.
        if kind in (1, 4):
            message = Message.FromString(whole)
            if message.WhichOneof("record_type") == "history":
                items = message.history.item
                rows.append({each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items})
            whole = b""
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name in row.keys() - {"env_steps"}:
            if not name.startswith("_") and not name.endswith("/env_steps"):
                found.setdefault(name, []).append((row["env_steps"], row[name]))
    return found


def of_mlflow(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(str(folder.root.parent / "mlruns"))
    experiment = client.get_experiment_by_name("penstock")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["ppo.learning_rate"] == "0.002" and run.info.run_name == folder.root.name
    names = run.data.metrics
    return {
        name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)] for name in names
    }


def of_trackio(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    with sqlite3.connect(folder.root.parent / "trackio" / "penstock.db") as store:
        for step, numbers in store.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            for name, value in json.loads(numbers).items():
                found.setdefault(name, []).append((step, value))
    return found


IN_GATE = [name if name == "trackio" else pytest.param(name, marks=pytest.mark.nightly) for name in TRACKERS]
READ = {"wandb": of_wandb, "mlflow": of_mlflow, "trackio": of_trackio}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedRun]:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    yield SimulatedRun(tmp_path / "run")


def tracker_of(run: SimulatedRun, name: str) -> Command:
    return Command("track", str(run.folder.root), "--to", name, directory=run.folder.root.parent)


def tracked(run: SimulatedRun, name: str) -> Ended:
    with tracker_of(run, name) as tracker:
        return end_of(tracker)


@pytest.mark.parametrize("name", IN_GATE)
def test_a_tracker_has_each_number_of_a_run_once(run: SimulatedRun, name: str) -> None:
    pytest.importorskip(name)
    run.resume()
    run.train(250)
    run.end()
    for _ in range(2):
        end = tracked(run, name)
        assert end.code == 0, end.stderr
        assert "\ntracking: the records " in end.stdout
        assert READ[name](run.folder) == run.recorded
    assert run.recorded["loss/policy_loss"][-1] == (250, 25.0) and run.recorded["evaluation/return_mean"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", TRACKERS)
def test_twenty_kills_of_the_tracker_and_of_the_run_lose_no_record_and_double_none(
    run: SimulatedRun, name: str
) -> None:
    pytest.importorskip(name)
    random = np.random.default_rng(0)
    sending = 0
    for _ in range(20):
        run.resume()
        with tracker_of(run, name) as tracker:
            run.train(int(random.integers(1, 60)) * 10)
            # Some are killed while they start, the others while they send.
            if random.random() < 0.8:
                tracker.until_output("the records")
                run.train(int(random.integers(100, 400)) * 10)
                time.sleep(1.5 * float(random.random()))
                sending += 1
            tracker.kill()
            tracker.wait()
        with run.folder.metrics.open("ab") as journal:
            # A kill of the run cuts the last line.
            journal.write(b'{"kind": "training", "env_st'[: int(random.integers(0, 29))])
    run.resume()
    run.end()
    end = tracked(run, name)
    assert end.code == 0, end.stderr
    assert READ[name](run.folder) == run.recorded
    assert sending > 10 and len(run.recorded["loss/policy_loss"]) > 1000


def test_a_record_is_sent_once_a_checkpoint_has_its_steps(run: SimulatedRun) -> None:
    run.resume()
    run.train(160)
    records = CommittedRecords(run.folder, {"training": Mark(40, 0.04)})
    sent = records.read()
    # An evaluation may be answered after later records of training.
    assert [each["env_steps"] for each in sent] == [*range(50, 101, 10), 80]
    assert [each["env_steps"] for each in records.waiting] == [*range(110, 161, 10)]
    # The session is killed, and the next one repeats the steps after the checkpoint.
    run.resume()
    assert records.read() == []
    run.train(100)
    sent += records.read()
    assert [each["env_steps"] for each in sent if each["kind"] == "training"] == [*range(50, 201, 10)]
    assert [each["env_steps"] for each in sent if each["kind"] == "evaluation"] == [80]
    assert [each for each in sent if each["env_steps"] > 100] == [
        each for each in records_of(run.folder.metrics) if each["env_steps"] > 100
    ]


def test_a_thinned_journal_doubles_no_record(run: SimulatedRun) -> None:
    run.resume()
    run.train(1000)
    records = CommittedRecords(run.folder, {})
    sent = [each["env_steps"] for each in records.read() if each["kind"] == "training"]
    lines = run.folder.metrics.read_bytes().splitlines(keepends=True)
    run.folder.metrics.unlink()
    run.folder.metrics.write_bytes(b"".join(thinned(lines, 4000)))
    run.resume()
    run.train(200)
    assert len(records_of(run.folder.metrics)) < 80
    assert sent + [each["env_steps"] for each in records.read() if each["kind"] == "training"] == [*range(10, 1201, 10)]


class Interrupted:
    """A tracker to which the connection breaks while it receives records."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self.place, self.last = tracker, tracker.place, tracker.last

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._tracker.send(records[: len(records) // 2])
        raise ConnectionError("connection reset")

    def close(self) -> None:
        raise ConnectionError("connection reset")


def test_a_tracker_that_fails_is_opened_again_and_lacks_no_record(
    run: SimulatedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setattr(following, "RETRY_S", 0.01)
    for module in ("utils", "sqlite_storage"):
        monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", run.folder.root.parent / "trackio")
    notices, attempts = list[str](), itertools.count(1)
    run.resume()
    run.train(200)

    def opened() -> Tracker:
        match next(attempts):
            case 1:
                raise ConnectionError("no route")
            case 4:
                run.end()
                return open_tracker("trackio", TrackedRun.of(run.folder, "penstock"))
            case _:
                return Interrupted(open_tracker("trackio", TrackedRun.of(run.folder, "penstock")))

    follow(run.folder.root, opened, notice=notices.append, stopping=threading.Event())
    assert of_trackio(run.folder) == run.recorded
    # Each reason is told once.
    assert [each.partition(";")[0] for each in notices if "failed" in each] == [
        "the tracker has failed: ConnectionError: no route",
        "the tracker has failed: ConnectionError: connection reset",
    ]


def test_a_tracker_that_fails_after_the_end_of_the_run_is_an_error_with_the_remedy(run: SimulatedRun) -> None:
    run.resume()
    run.train(100)
    run.end()

    def refuse() -> Any:
        raise ConnectionError("no route")

    with pytest.raises(PenstockError, match=r"failed: ConnectionError: no route; check the network.*penstock track"):
        follow(run.folder.root, refuse, notice=print, stopping=threading.Event())


@pytest.mark.parametrize("name", IN_GATE)
def test_a_folder_that_can_not_be_written_is_refused_with_the_remedy(
    run: SimulatedRun, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    file = run.folder.root.parent / "file"
    file.touch()
    run.folder.wandb.touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(file))
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", file)
    with pytest.raises(ConfigurationError, match=r"can't write .*(wandb|file): File exists; (remove|set)"):
        open_tracker(name, TrackedRun.of(run.folder, "penstock"))


def test_two_processes_do_not_send_a_run_to_a_tracker_at_the_same_time(
    run: SimulatedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_OTHERS_S", 0.0)
    notices, stopping = list[str](), threading.Event()
    with only_sender(run.folder.root, "wandb", notice=notices.append, stopping=stopping):
        with only_sender(run.folder.root, "mlflow", notice=notices.append, stopping=stopping):
            assert not notices
        stopping.set()
        with (
            pytest.raises(PenstockError, match="end it first"),
            only_sender(run.folder.root, "wandb", notice=notices.append, stopping=stopping),
        ):
            pass
    assert notices == ["another process sends this run to the tracker; waiting for its end"]
    with only_sender(run.folder.root, "wandb", notice=notices.append, stopping=stopping):
        pass


@pytest.mark.nightly
def test_a_signal_ends_the_command_after_the_last_committed_records(run: SimulatedRun) -> None:
    pytest.importorskip("trackio")
    run.resume()
    run.train(130)
    with tracker_of(run, "trackio") as tracker:
        tracker.until_output("the records")
        tracker.terminate()
        end = end_of(tracker)
    assert end.code == 0 and "3 records follow the newest checkpoint" in end.stdout
    assert of_trackio(run.folder)["loss/policy_loss"][-1] == (100, 10.0)


def test_a_project_is_refused_in_one_line(run: SimulatedRun) -> None:
    with pytest.raises(ConfigurationError, match=r"tracking\.project must be a name of at most 100 letters"):
        track.command([str(run.folder.root), "--to", "wandb", "--project", "a/b"])
