"""A run on one machine is its user's alone: it listens without a network, and other users can't read it."""

import json
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.machine.addresses import Address
from penstock.runs.folder import RunFolder
from tests.support.machine.other_user import open_to_others
from tests.support.services.processes import PENSTOCK, WITH_HELPERS, Command, end_of, watching

pytestmark = pytest.mark.nightly

SETTINGS = (
    "--env-id=Paced-v0 --env-import=tests.support.environments.paced --actors=2 --envs-per-actor=4 --ppo.epochs=1"
    " --train.replay-shards=2 --evaluation.interval-steps=100000 --total-steps=10000000"
)
SERVICES = ["replay-0", "replay-1", "learner", "evaluator", "actor-0", "actor-1"]


@dataclass(frozen=True, slots=True)
class Active:
    """What was seen while a run was active, and after it.

    Attributes:
        addresses: Address of each service.
        modes: Permissions of each file and folder below the run's folder.
        open: Files, folders and sockets that another user can use.
        ports: Ports on which the run listened.
        metrics: Ports of the metrics, as targets.json lists them.
        moved: Number of abstract sockets of services: one for each that offers them, and one for each moved stream.
        left: Names in the run's folder after its end.
    """

    root: Path
    addresses: dict[str, Address]
    modes: dict[str, int]
    open: set[str]
    ports: set[int]
    metrics: set[int]
    moved: int
    left: set[str]


@pytest.fixture(scope="module", params=["000", "022"], ids=["umask 000", "umask 022"])
def active(request: pytest.FixtureRequest) -> Iterator[Active]:
    # Not below pytest's folder, which other users can't enter either.
    with tempfile.TemporaryDirectory(prefix="penstock-private-") as above:
        root = Path(above) / "run of mine"
        root.mkdir()
        for place in (Path(above), root):
            place.chmod(0o755)
        program = ("sh", "-c", 'umask "$0"; exec "$@"', request.param, PENSTOCK)
        command = Command("train", *SETTINGS.split(), f"--run-dir={root}", environment=WITH_HELPERS, program=program)
        with command:
            yield _seen(command, RunFolder(root))


def _seen(command: Command, folder: RunFolder) -> Active:
    with watching(command, folder.root) as watch:
        watch.until(lambda now: sum(each.segments > 0 for each in now.actor_states) == 2, "both actors deliver")
        command.until(lambda: len(_metrics(folder)) == len(SERVICES), "all services in targets.json")
        addresses = {name: Address.parse(text) for name, text in json.loads(folder.services.read_text()).items()}
        paths = [*folder.root.rglob("*")]
        seen = Active(
            root=folder.root,
            addresses=addresses,
            modes={str(path.relative_to(folder.root)): stat.S_IMODE(path.stat().st_mode) for path in paths},
            open=_open_to_others(folder, paths, addresses),
            ports=command.ports(),
            metrics=_metrics(folder),
            moved=sum(
                str(at.laddr).startswith("@penstock-")
                for process in command.family()
                for at in process.net_connections("unix")
            ),
            left=set(),
        )
    command.interrupt()
    assert end_of(command).left_behind == []
    seen.left.update(path.name for path in folder.root.iterdir())
    return seen


def _open_to_others(folder: RunFolder, paths: list[Path], addresses: dict[str, Address]) -> set[str]:
    """Returns what another user can use, after a look at a socket that is open to all."""
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(folder.root / "control"))
        control.listen()
        (folder.root / "control").chmod(0o777)
        sockets = [folder.root / "control", *(Path(address.path) for address in addresses.values())]
        found = set(open_to_others(paths, sockets))
    (folder.root / "control").unlink()
    return found - {str(folder.root / "control")} if str(folder.root / "control") in found else {"no control"}


def _metrics(folder: RunFolder) -> set[int]:
    if not folder.targets.exists():
        return set()
    return {Address.parse(text).port for group in json.loads(folder.targets.read_text()) for text in group["targets"]}


def test_every_service_listens_at_a_socket_file_in_a_private_folder_of_the_run(active: Active) -> None:
    assert list(active.addresses) == SERVICES
    folders = {Path(address.path).parent for address in active.addresses.values()}
    (folder,) = folders
    assert folder.parent == active.root and active.modes[folder.name] == 0o700


def test_nothing_but_metrics_listens_at_a_port(active: Active) -> None:
    assert active.ports == active.metrics
    assert len(active.ports) == len(SERVICES)


def test_streams_between_the_services_still_move_to_unix_sockets(active: Active) -> None:
    offering = 3
    joined, appending, sampling = 2, 2, 2
    assert active.moved == offering + joined + appending + sampling


def test_files_and_folders_are_the_users_alone_whatever_the_umask(active: Active) -> None:
    shared = {name: oct(mode) for name, mode in active.modes.items() if mode & 0o077}
    # gRPC makes the socket files, by the umask.
    assert {name for name in shared if not name.startswith("sockets-")} == {"targets.json"}
    assert shared["targets.json"] == "0o644"
    for name in ("roster.json", "services.json", "replay/replay-0/segments.bin", "replay/replay-0/staging", "logs"):
        assert name in active.modes


def test_another_user_reads_nothing_but_the_list_for_prometheus_and_connects_to_no_service(active: Active) -> None:
    assert active.open == {str(active.root / "targets.json")}


def test_no_socket_is_left_after_the_run(active: Active) -> None:
    assert "config.toml" in active.left
    assert not any(name.startswith("sockets-") or name == "services.json" for name in active.left)
