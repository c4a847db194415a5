"""Changes of the variants that actors play in turn: who may make them, and what actors are told of them."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.config.added_variants import check_added
from penstock.config.settings.environment import EnvironmentConfig
from penstock.errors import ConfigurationError, PermissionDenied, SchemaMismatch
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.members.population import Population
from penstock.learning.report.statistics import RunStatistics
from penstock.rpc import methods
from penstock.rpc.clients.membership import Membership
from penstock.rpc.clients.operator import VariantClient
from penstock.rpc.loop import LoopThread
from penstock.rpc.proofs import public_half
from penstock.rpc.servicers.variants import VariantServicer
from penstock.types.extents import Amounts
from penstock.types.run import ActorReport, Episode, RunIdentity
from penstock.types.statistics import Timing
from penstock.types.variants import RunVariant, VariantChange
from penstock.v1 import run_pb2
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.servers import LiveRun, Loopback, proved, until

ENVIRONMENT = EnvironmentConfig.model_validate(
    {"id": "Arm-v0", "variants": ({"joints": 2, "shape": "round", "lengths": [1.0, 1.0]}, {"joints": 3})}
)
RUN = RunIdentity.draw()


class Varied:
    """The services of a learner whose actors play variants in turn; without `varied`, their slots decide."""

    def __init__(self, loopback: Loopback, folder: Path, *, varied: bool = True) -> None:
        statistics = RunStatistics(limits=Amounts(steps=1000), earlier_s=0.0, variants=("joints=2", "joints=3"))
        self.population = Population(
            folder / "variants.json",
            ENVIRONMENT.variants,
            check=lambda arguments: check_added(ENVIRONMENT, arguments),
            least_share=0.2,
            writes=RetriedWrites(statistics.notice),
            notice=statistics.notice,
        )
        servicer = VariantServicer(self.population if varied else None, statistics, public_half(RUN.key))
        self.server: LiveRun = loopback.run(
            folder / "roster.json",
            population=self.population if varied else None,
            more_methods=servicer.behaviours,
        )
        self.statistics = statistics
        self._loopback = loopback

    def change(self, key: bytes = RUN.key, **change: Any) -> list[RunVariant]:
        """Requests a change with the proof of a key."""
        client = VariantClient(self._loopback.thread, self.server.address, key)
        try:
            return client.change(VariantChange(**change), PATIENCE_S)
        finally:
            client.close()


def told(member: Membership) -> dict[int, tuple[Mapping[str, Any], float]]:
    """Returns the arguments and the share of each variant that an actor has been told to play."""
    assignment = until(lambda: member.assignment(0.5), "an assignment")
    return {each.number: (json.loads(each.arguments), each.share) for each in assignment.variants}


def test_actors_learn_of_changes_while_they_are_joined_and_when_they_join(loopback: Loopback, tmp_path: Path) -> None:
    varied = Varied(loopback, tmp_path)
    early = loopback.membership(varied.server)
    assert list(told(early)) == [0, 1]
    known = varied.change(add=[{"joints": 5, "lengths": [0.5, 0.5]}], retire=[0])
    assert [(each.number, each.retired, each.share) for each in known] == [
        (0, True, 0.0),
        (1, False, 1.0),
        (2, False, 1.0),
    ]
    assert known[-1].arguments == {"joints": 5, "lengths": [0.5, 0.5]}
    until(lambda: list(told(early)) == [1, 2], "the change")
    assert told(early)[2] == ({"joints": 5, "lengths": [0.5, 0.5]}, 1.0)
    varied.population.weigh({1: 3.0, 2: 1.0})
    until(lambda: told(early)[1][1] == 1.5, "the shares")
    assert told(loopback.membership(varied.server)) == told(early)


def test_a_list_has_the_episodes_of_each_variant_by_its_number(loopback: Loopback, tmp_path: Path) -> None:
    varied = Varied(loopback, tmp_path)
    varied.change(add=[{"joints": 4}])
    episodes = [Episode(value, 5, 0, False, variant=variant) for variant, value in [(1, 2.0), (2, 5.0), (2, 7.0)]]
    varied.statistics.report(ActorReport(15, 0.0, tuple(episodes), Timing(0.1, 0.1, 0.1, 0.1)), 0)
    assert [(each.episodes, each.return_mean) for each in varied.change()] == [(0, None), (1, 2.0), (2, 6.0)]


@pytest.mark.parametrize("key", [b"", RunIdentity.draw().key], ids=["no key", "another key"])
def test_a_stranger_changes_nothing(loopback: Loopback, tmp_path: Path, key: bytes) -> None:
    varied = Varied(loopback, tmp_path)
    with pytest.raises(PermissionDenied, match=r"ChangeVariants needs a certificate, or a proof of the run's key"):
        varied.change(key, retire=[0])
    assert len(varied.population.active) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"add": [{"joints": 4, "size": 1}]},
            "has the argument 'size'; a variant that is added may have joints, shape,",
        ),
        ({"add": [{"shape": "/etc/passwd"}]}, "the argument shape of a variant that is added must be a finite number"),
        ({"add": [{"lengths": [float("inf")]}]}, "the argument lengths .* must be a finite number"),
        ({"add": [{"lengths": [["x"]]}]}, "the argument lengths .* must be a finite number"),
        ({"retire": [7]}, "variant 7 is not played"),
        ({"retire": [0, 1]}, "no variant would be left"),
    ],
)
def test_a_change_that_is_refused_has_one_line_and_reaches_no_actor(
    loopback: Loopback, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    varied = Varied(loopback, tmp_path)
    member = loopback.membership(varied.server)
    assert list(told(member)) == [0, 1]
    with pytest.raises((ConfigurationError, SchemaMismatch), match=rf"^[^\n]*{reason}[^\n]*$"):
        varied.change(**change)
    varied.change(add=[{"joints": 4, "shape": "round"}])
    until(lambda: list(told(member)) == [0, 1, 2], "the change after the refused one")


@pytest.mark.parametrize("text", ["", "3", "[" * 5000, '{"joints": '])
def test_arguments_that_are_no_table_are_refused(loopback: Loopback, tmp_path: Path, text: str) -> None:
    varied = Varied(loopback, tmp_path)
    stream = loopback.plain(varied.server, methods.CHANGE_VARIANTS)
    request = run_pb2.ChangeVariantsRequest(add=[text])
    stream.send(proved(methods.CHANGE_VARIANTS, request, RUN.key, stream.challenge))
    code, details = stream.status()
    assert code.name == "INVALID_ARGUMENT" and details.startswith("the arguments of a variant"), details


def test_a_run_whose_slots_decide_refuses_changes_with_the_remedy(loopback: Loopback, tmp_path: Path) -> None:
    varied = Varied(loopback, tmp_path, varied=False)
    assert told(loopback.membership(varied.server)) == {}
    with pytest.raises((ConfigurationError, SchemaMismatch), match=r"start it with environment\.vary episodes"):
        varied.change()


def test_connections_of_single_changes_disturb_no_other(
    loopback: Loopback, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    varied = Varied(loopback, tmp_path)
    member = loopback.membership(varied.server)
    for number in range(2, 32):
        with closing(LoopThread()) as thread, closing(VariantClient(thread, varied.server.address, RUN.key)) as client:
            client.change(VariantChange(add=[{"joints": number}]), PATIENCE_S)
    until(lambda: list(told(member)) == list(range(32)), "all changes")
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
