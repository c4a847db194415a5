import json
import math
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.errors import ConfigurationError, NotReady, RunFinished
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.runs.folder import RunFolder
from penstock.runs.services_file import AddressFile, LearnerOfRun, ServicesFile, learner_of, patience_s, replay_peers
from penstock.runs.summary import Summary
from penstock.types.location import Place
from penstock.types.status import Stopped

LEARNER = Place(("node1:7432", "[fd00::1]:7432"), 0x1F)
REPLAY = Place(("node2:7431", "10.0.0.2:7431"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run of 1,000 steps that has begun to train."""
    folder = RunFolder(tmp_path)
    folder.config.write_text(Config(total_steps=1000).to_toml())
    return folder


def finish(folder: RunFolder, stopped: Stopped = "total_steps") -> None:
    Summary(
        run_dir="run",
        env_id="CartPole-v1",
        seed=1,
        env_steps=1000,
        wall_s=2.0,
        env_steps_per_s=500.0,
        evaluation=None,
        env_steps_to_threshold=None,
        learn_wall_s_to_threshold=None,
        policy_version=7,
        staleness_mean=1.5,
        samples_per_insert=2.0,
        stopped=stopped,
    ).write(folder.summary)


def test_the_file_has_all_addresses_of_each_service(folder: RunFolder) -> None:
    places = ReplayPlaces(["a:1"])
    file = ServicesFile(folder, LEARNER, places)
    file.write()
    assert json.loads(folder.services.read_text()) == {
        "replay": "a:1",
        "learner": "node1:7432,[fd00::1]:7432",
        "identity": "1f",
    }
    places.note(0, REPLAY)
    file.write()
    assert folder.places() == {"replay": REPLAY, "learner": LEARNER}


def test_the_services_of_several_shards_are_numbered(folder: RunFolder) -> None:
    ServicesFile(folder, LEARNER, ReplayPlaces(["a:1", "b:1"])).write()
    assert folder.places() == {"replay-0": Place(("a:1",)), "replay-1": Place(("b:1",)), "learner": LEARNER}


def test_the_list_of_a_launcher_has_no_identity(folder: RunFolder) -> None:
    folder.services.write_text('{"learner": "127.0.0.1:1"}')
    assert folder.places() == {"learner": Place(("127.0.0.1:1",))}


def test_a_removed_file_is_not_written_again(folder: RunFolder) -> None:
    file = ServicesFile(folder, LEARNER, ReplayPlaces(["a:1"]))
    file.write()
    file.remove()
    file.write()
    assert not folder.services.exists()
    file.remove()


def test_the_file_is_read_again_for_each_attempt(folder: RunFolder) -> None:
    learner = LearnerOfRun(str(folder.root))
    ServicesFile(folder, LEARNER, ReplayPlaces(["a:1"])).write()
    assert learner() == LEARNER
    moved = Place(("node2:7432",), 0x2F)
    ServicesFile(folder, moved, ReplayPlaces(["a:1"])).write()
    assert learner() == moved


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"learner": '])
def test_a_missing_or_damaged_file_is_waited_for(folder: RunFolder, content: str | None) -> None:
    if content is not None:
        folder.services.write_text(content)
    with pytest.raises(NotReady, match=r"^the learner of \S+ can't be reached: .*services\.json"):
        LearnerOfRun(str(folder.root))()


def test_a_folder_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(NotReady):
        LearnerOfRun(str(tmp_path / "later"))()


def test_a_run_that_ends_while_a_process_takes_part_is_over_at_once(folder: RunFolder) -> None:
    file = ServicesFile(folder, LEARNER, ReplayPlaces(["a:1"]))
    file.write()
    learner = LearnerOfRun(str(folder.root))
    learner()
    finish(folder)
    assert learner() == LEARNER
    file.remove()
    with pytest.raises(RunFinished, match="already trained 1,000 steps"):
        learner()


def test_a_run_that_was_over_before_may_be_resumed_for_a_minute(folder: RunFolder) -> None:
    now = 0.0
    finish(folder)
    learner = LearnerOfRun(str(folder.root), clock=lambda: now)
    now = 60.0
    with pytest.raises(NotReady):
        learner()
    now = 60.1
    with pytest.raises(RunFinished):
        learner()


def test_an_interrupted_run_is_not_over(folder: RunFolder) -> None:
    finish(folder, "interrupted")
    with pytest.raises(NotReady):
        LearnerOfRun(str(folder.root), resumed_within_s=-1.0)()


def test_a_run_replaces_configured_addresses() -> None:
    assert learner_of(Config(actor={"learner_address": "a:1,b:2"}).actor) == ("a:1", "b:2")
    assert isinstance(learner_of(Config(actor={"run": "runs/x"}).actor), LearnerOfRun)


def test_only_a_process_that_no_launcher_ends_gives_up() -> None:
    settings = Config(actor={"give_up_after_s": 5.0}).actor
    assert patience_s(settings, supervised=False) == 5.0
    assert patience_s(settings, supervised=True) == math.inf


# The file of a replay service


def test_the_place_of_a_replay_service_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = AddressFile(str(tmp_path / "replay.json"))
    place = Place(("node1:7431", "[fd00::1]:7431"), 2**63 + 5)
    file.write(place)
    assert AddressFile(str(tmp_path / "replay.json"))() == place
    file.remove()
    with pytest.raises(NotReady, match=r"there is no \S+replay\.json"):
        file()
    file.remove()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"addresses": 1, "identity": "1"}', '{"addresses": "a:1"'])
def test_a_damaged_file_of_a_replay_service_is_waited_for(tmp_path: Path, content: str) -> None:
    (tmp_path / "replay.json").write_text(content)
    with pytest.raises(NotReady):
        AddressFile(str(tmp_path / "replay.json"))()


def test_a_file_that_can_not_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"can't write \S+: File exists.*replay\.address_file$"):
        AddressFile(str(tmp_path / "file" / "replay.json")).write(Place(("a:1",)))


def test_replay_services_are_named_by_addresses_and_files(tmp_path: Path) -> None:
    AddressFile(str(tmp_path / "replay.json")).write(Place(("a:1",), 3))
    address, file = replay_peers(Config(learner={"replay_addresses": f"b:1,file:{tmp_path / 'replay.json'}"}).learner)
    assert address == "b:1"
    assert isinstance(file, AddressFile)
    assert file() == Place(("a:1",), 3)
