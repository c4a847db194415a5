"""Many actors that join at once do not stop the learner's event loop, also while the disk does not answer."""

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from penstock.learning.members import roster
from penstock.machine.files import write_atomically
from penstock.rpc import methods
from penstock.rpc.servicers import run as servicer
from penstock.v1 import run_pb2
from tests.support.machine.timing import NEVER_S, PATIENCE_S
from tests.support.services.servers import LiveRun, Loopback, PlainStream, hello_request, sample, until

Code = grpc.StatusCode


class Disk:
    """The disk of a roster, which answers while `answers` is set.

    Attributes:
        writers: Threads that have written.
        writes: Number of writes that have begun.
    """

    def __init__(self) -> None:
        self.answers, self.writers, self.writes = threading.Event(), set[str](), 0
        self.answers.set()
        self._write = write_atomically

    def write(self, path: Path, data: bytes) -> None:
        self.writers.add(threading.current_thread().name)
        self.writes += 1
        assert self.answers.wait(PATIENCE_S)
        self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(roster, "write_atomically", disk.write)
    yield disk
    disk.answers.set()


def joining(loopback: Loopback, server: LiveRun, count: int = 1) -> list[PlainStream]:
    streams = [loopback.plain(server, methods.JOIN) for _ in range(count)]
    for stream in streams:
        stream.send(hello_request())
    return streams


def place_of(stream: PlainStream) -> run_pb2.Assignment:
    assignment: run_pb2.Assignment = stream.receive().assignment
    return assignment


def ping(server: LiveRun) -> None:
    """Returns when the server's event loop has run another task."""

    async def answer() -> None:
        pass

    server.thread.run(answer(), PATIENCE_S)


def test_the_event_loop_writes_nothing_when_actors_join(loopback: Loopback, tmp_path: Path, disk: Disk) -> None:
    server = loopback.run(tmp_path / "roster.json", max_actors=64)
    disk.writers.clear()
    for stream in joining(loopback, server, 5):
        place_of(stream)
    assert disk.writers
    assert server.thread.run(_name_of_this_thread(), PATIENCE_S) not in disk.writers


async def _name_of_this_thread() -> str:
    return threading.current_thread().name


def test_the_learner_serves_others_while_the_disk_does_not_answer(
    loopback: Loopback, tmp_path: Path, disk: Disk
) -> None:
    server = loopback.run(tmp_path / "roster.json", max_actors=64)
    first = joining(loopback, server)[0]
    place = place_of(first)
    writes = disk.writes
    disk.answers.clear()
    streams = joining(loopback, server, 40)
    until(lambda: disk.writes > writes, "a write that blocks")
    ping(server)
    status = loopback.status(server.address).get(PATIENCE_S)
    assert status is not None
    # They are admitted all the same, because no incarnation of them can be given out again.
    places = [place_of(stream) for stream in streams]
    assert len({each.slot for each in [place, *places]}) == 41
    disk.answers.set()


def test_places_that_were_given_out_without_the_disk_do_not_repeat(
    loopback: Loopback, tmp_path: Path, disk: Disk
) -> None:
    server = loopback.run(tmp_path / "roster.json", max_actors=64)
    known = place_of(joining(loopback, server)[0])
    disk.answers.clear()
    lost = [place_of(stream) for stream in joining(loopback, server, 3)]
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    disk.answers.set()
    server.kill()
    later = tmp_path / "later"
    later.mkdir()
    for name, content in files.items():
        # The files as a kill would have left them.
        (later / name).write_bytes(content)
    again = loopback.run(later / "roster.json", max_actors=64)
    back = loopback.plain(again, methods.JOIN)
    back.send(hello_request(known.token))
    assert place_of(back).slot == known.slot
    new = [place_of(stream) for stream in joining(loopback, again, 4)]
    given = {(each.slot, each.incarnation) for each in lost}
    assert not given & {(each.slot, each.incarnation) for each in new}
    streams = {(number, each.incarnation) for each in lost for number in each.environments}
    assert not streams & {(number, each.incarnation) for each in new for number in each.environments}


def test_the_first_actor_waits_for_the_disk_and_is_refused_if_it_does_not_answer(
    loopback: Loopback, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a clean end, the files permit no incarnation that they do not have."""
    monkeypatch.setattr(servicer, "_REFUSED_S", 0.2)
    server = loopback.run(tmp_path / "roster.json")
    disk.answers.clear()
    (stream,) = joining(loopback, server)
    code, details = stream.status()
    assert (code, "can't be recorded" in details) == (Code.RESOURCE_EXHAUSTED, True)
    disk.answers.set()
    monkeypatch.setattr(servicer, "_REFUSED_S", NEVER_S)
    assert place_of(joining(loopback, server)[0]).slot == 0
    until(lambda: server.roster.connected == 1, "one actor")


def test_one_write_covers_the_joins_that_arrive_together(loopback: Loopback, tmp_path: Path, disk: Disk) -> None:
    server = loopback.run(tmp_path / "roster.json", max_actors=64)
    place_of(joining(loopback, server)[0])
    disk.answers.clear()
    before = disk.writes
    joining(loopback, server)
    until(lambda: disk.writes > before, "a write that blocks")
    streams = joining(loopback, server, 20)
    until(lambda: server.roster.connected == 22, "all joins")
    disk.answers.set()
    for stream in streams:
        place_of(stream)
    # Each write is of two files: the one that blocked, and one or two for the twenty.
    assert disk.writes - before <= 6


def test_an_actor_that_leaves_while_it_joins_keeps_no_stream(loopback: Loopback, tmp_path: Path, disk: Disk) -> None:
    server = loopback.run(tmp_path / "roster.json", max_actors=64)
    place_of(joining(loopback, server)[0])
    disk.answers.clear()
    (stream,) = joining(loopback, server)
    until(lambda: server.roster.connected == 2, "the join")
    stream.close()
    until(lambda: server.roster.connected == 1, "the actor to leave")
    disk.answers.set()


def test_more_joins_than_can_wait_are_asked_to_join_again(
    loopback: Loopback, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "_MOST_WAITING", 4)
    monkeypatch.setattr(servicer, "_RECORDED_S", NEVER_S)
    server = loopback.run(tmp_path / "roster.json", max_actors=64)
    place_of(joining(loopback, server)[0])
    disk.answers.clear()
    streams = joining(loopback, server, 4)
    until(lambda: server.roster.connected == 5, "four joins that wait")
    before = sample("penstock_learner_deferred_joins_total")
    (refused,) = joining(loopback, server)
    code, details = refused.status()
    assert (code, "join again" in details, "\n" in details) == (Code.RESOURCE_EXHAUSTED, True, False)
    assert sample("penstock_learner_deferred_joins_total") == before + 1
    # Our own client tries again by itself.
    patient = loopback.membership(server)
    until(lambda: sample("penstock_learner_deferred_joins_total") > before + 1, "its first attempt")
    assert patient.assignment(0.0) is None
    disk.answers.set()
    assert until(lambda: patient.assignment(0.2), "its place").slot == 5
    for stream in streams:
        place_of(stream)


def test_a_flood_of_joins_leaves_a_roster_that_is_read_again(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json", max_actors=200)
    streams = joining(loopback, server, 150)
    places = [place_of(stream) for stream in streams]
    assert sorted(each.slot for each in places) == list(range(150))
    assert sorted(number for each in places for number in each.environments) == list(range(300))
    server.kill()
    again = loopback.run(tmp_path / "roster.json", max_actors=200)
    for place in places[::50]:
        back = loopback.plain(again, methods.JOIN)
        back.send(hello_request(place.token))
        assert place_of(back) == place
