"""The list of metrics addresses for Prometheus."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from penstock.learning.members import targets
from penstock.learning.members.targets import Content, Targets
from penstock.types.location import Location, Origin
from tests.support.machine.timing import wait_for

HERE, THERE = Origin(), Origin("203.0.113.2")
OWN = Location("node1", metrics_address="node1:9432")
LEARNER = {"targets": ["node1:9432"], "labels": {"job": "learner", "node": "node1"}}


class Written:
    """Lists as they were written, with their number."""

    def __init__(self) -> None:
        self.lists: list[Content] = []

    def __call__(self, content: Content) -> None:
        self.lists.append(content)

    def last(self) -> Content | None:
        return self.lists[-1] if self.lists else None


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def listed(written: Written, monkeypatch: pytest.MonkeyPatch) -> Iterator[Targets]:
    monkeypatch.setattr(targets, "_INTERVAL_S", 0.0)
    listed = Targets(written, OWN)
    yield listed
    listed.close()


def actor(slot: int, node: str = "node2", port: int = 0) -> Location:
    return Location(node, metrics_address=f"{node}:{port or 40_000 + slot}")


def test_services_are_listed_with_their_job_node_and_slot_while_they_take_part(
    listed: Targets, written: Written
) -> None:
    wait_for(lambda: written.last() == [LEARNER], "the learner")
    evaluator = Location("node1", "", "[fd77::1]:9434")
    with (
        listed.listing("actor", actor(3), THERE, 3),
        listed.listing("evaluator", evaluator, Origin("fd77::1")),
    ):
        both = [
            {"targets": ["203.0.113.2:40003"], "labels": {"job": "actor", "node": "node2", "slot": "3"}},
            {"targets": ["[fd77::1]:9434"], "labels": {"job": "evaluator", "node": "node1"}},
            LEARNER,
        ]
        assert listed.content() == both
        wait_for(lambda: written.last() == both, "both")
    wait_for(lambda: written.last() == [LEARNER], "the learner alone")


def test_an_actor_that_returns_before_its_old_stream_ends_is_listed_once(listed: Targets) -> None:
    with ExitStack() as streams:
        old = streams.enter_context(ExitStack())
        old.enter_context(listed.listing("actor", actor(0), THERE, 0))
        streams.enter_context(listed.listing("actor", actor(0), THERE, 5))
        assert [group["labels"].get("slot") for group in listed.content()] == ["5", None]
        old.close()
        assert [group["labels"].get("slot") for group in listed.content()] == ["5", None]
    assert listed.content() == [LEARNER]


def test_a_service_that_is_put_again_replaces_itself(listed: Targets) -> None:
    for number, port in ((0, 1), (1, 2), (0, 3), (1, 2)):
        listed.put("replay", number, Location("node2", metrics_address=f"node2:{port}"))
    assert [group["targets"] for group in listed.content()] == [["node1:9432"], ["node2:2"], ["node2:3"]]
    listed.put("replay", 0, Location("node2"))
    assert [group["targets"] for group in listed.content()] == [["node1:9432"], ["node2:2"]]


def test_a_list_that_has_not_changed_is_not_written_again(listed: Targets, written: Written) -> None:
    wait_for(lambda: written.lists, "the first list")
    for _ in range(3):
        listed.put("learner", 0, OWN)
    with listed.listing("actor", actor(0), THERE, 0):
        wait_for(lambda: len(written.lists) > 1, "another list")
    wait_for(lambda: len(written.lists) > 2, "the list without the actor")
    assert [len(content) for content in written.lists] == [1, 2, 1]


def test_a_service_without_metrics_is_not_listed(listed: Targets) -> None:
    with listed.listing("actor", Location("node2"), THERE, 0):
        assert listed.content() == [LEARNER]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.9.10"])
def test_a_service_on_the_loopback_of_another_node_is_not_listed_and_the_log_says_so_once(
    host: str, listed: Targets
) -> None:
    structlog.configure()
    with capture_logs() as events, ExitStack() as streams:
        for slot in range(3):
            there = Location("node2", metrics_address=f"{host}:{40_000 + slot}")
            streams.enter_context(listed.listing("actor", there, THERE, slot))
        here = Location("node1", metrics_address=f"{host}:40009")
        streams.enter_context(listed.listing("actor", here, HERE, 9))
        assert [group["targets"] for group in listed.content()] == [[f"{host}:40009"], ["node1:9432"]]
    structlog.reset_defaults()
    (event,) = events
    assert (event["event"], event["node"]) == ("metrics not listed", "node2")
    assert "telemetry.metrics_host" in event["reason"]


@pytest.mark.parametrize(
    ("stated", "origin", "shown"),
    [
        # A name is never looked up: the client's own address takes its place.
        ("node2:9433", THERE, "203.0.113.2:9433"),
        ("metadata.google.internal:80", THERE, "203.0.113.2:80"),
        ("node1:9432", THERE, "203.0.113.2:9432"),
        ("localhost:9433", HERE, "localhost:9433"),
        ("node2:9433", Origin("fd77::2"), "[fd77::2]:9433"),
        ("node2:9433", Origin("127.0.0.1"), "127.0.0.1:9433"),
        ("node2:9433", HERE, "127.0.0.1:9433"),
        # Its own addresses.
        ("203.0.113.2:9433", THERE, "203.0.113.2:9433"),
        ("[::ffff:203.0.113.2]:9433", THERE, "[::ffff:203.0.113.2]:9433"),
        ("[fd77::2]:9433", Origin("fd77:0::2"), "[fd77::2]:9433"),
        ("127.0.0.1:9433", HERE, "127.0.0.1:9433"),
        ("127.0.0.1:9433", Origin("127.0.0.1"), "127.0.0.1:9433"),
        ("[::1]:9433", Origin("127.0.0.1"), "[::1]:9433"),
        # Those in its certificate.
        ("node2:9433", Origin("203.0.113.2", frozenset({"node2"})), "node2:9433"),
        ("198.51.100.2:9433", Origin("203.0.113.2", frozenset({"198.51.100.2"})), "198.51.100.2:9433"),
        # Others'.
        ("169.254.169.254:80", THERE, None),
        ("169.254.169.254:80", HERE, None),
        ("[fe80::1]:80", Origin("fd77::2"), None),
        ("203.0.113.1:9432", THERE, None),
        ("127.0.0.1:9432", THERE, None),
        ("0.0.0.0:9432", HERE, None),
        ("224.0.0.1:80", HERE, None),
        ("198.51.100.3:9433", Origin("203.0.113.2", frozenset({"198.51.100.2"})), None),
    ],
)
def test_a_client_is_listed_at_its_own_host_alone(
    listed: Targets, stated: str, origin: Origin, shown: str | None
) -> None:
    before = unlisted()
    with listed.listing("actor", Location("node1", metrics_address=stated), origin, 7):
        actors = [group["targets"][0] for group in listed.content() if group["labels"]["job"] == "actor"]
    assert actors == ([] if shown is None else [shown])
    assert unlisted() == before + (shown is None)


def test_no_client_replaces_or_removes_a_service(listed: Targets) -> None:
    listed.put("replay", 0, Location("node2", metrics_address="203.0.113.2:9431"))
    services = listed.content()
    forged = ["node1:9432", "203.0.113.2:9431", "NODE1:9432", "169.254.169.254:80"]
    for origin in (THERE, HERE, Origin("203.0.113.2", frozenset({"node1"}))):
        for address in forged:
            with listed.listing("actor", Location("node1", metrics_address=address), origin, 0):
                listed.put("replay", 0, Location("node2", metrics_address="203.0.113.2:9431"))
                assert of_services(listed.content()) == services
            assert listed.content() == services


def test_forged_addresses_are_logged_once(listed: Targets) -> None:
    structlog.configure()
    with capture_logs() as events:
        for port in range(5):
            forged = Location("node2", metrics_address=f"169.254.169.254:{port + 80}")
            with listed.listing("actor", forged, THERE, port):
                pass
    structlog.reset_defaults()
    (event,) = events
    assert event["event"] == "metrics not listed"
    assert event["reason"].startswith("it states 169.254.169.254:80 and is connected from 203.0.113.2; set ")


def of_services(content: Content) -> Content:
    return [group for group in content if group["labels"]["job"] in ("learner", "replay")]


def unlisted() -> Any:
    return REGISTRY.get_sample_value("penstock_unlisted_metrics_addresses_total", {"service": "actor"}) or 0.0


def test_many_services_that_join_at_once_cause_few_writes(monkeypatch: pytest.MonkeyPatch, written: Written) -> None:
    monkeypatch.setattr(targets, "_INTERVAL_S", 3600.0)
    listed = Targets(written, OWN)
    wait_for(lambda: written.lists, "the first list")
    joined, leave = threading.Barrier(257), threading.Event()

    def take_part(slot: int) -> None:
        with listed.listing("actor", actor(slot), THERE, slot):
            joined.wait()
            leave.wait()

    actors = [threading.Thread(target=take_part, args=(slot,)) for slot in range(256)]
    for each in actors:
        each.start()
    joined.wait()
    assert len(listed.content()) == 257
    assert written.lists == [[LEARNER]]
    leave.set()
    for each in actors:
        each.join()
    listed.close()
    assert written.lists == [[LEARNER]]
