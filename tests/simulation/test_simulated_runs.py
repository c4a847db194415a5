"""Simulated runs of the services of production, with faults, in virtual time (`tests/support/simulation`)."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.learning.durable.versions import VersionMark
from penstock.replay.admission import Gate
from penstock.replay.intake import Intake
from penstock.replay.leases import Leases
from penstock.replay.ownership import Ownership
from penstock.replay.store.ages import Ages
from penstock.rpc.clients.commit_ledger import CommitLedger
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.servicers.append import AppendServicer
from penstock.types.replay import SamplingPlan
from tests.support.machine.timing import PATIENCE_S
from tests.support.simulation.runs import first_failure, report, run, shrunk
from tests.support.simulation.schedule import Schedule

SEEDS = range(40)
NIGHTLY = range(1_000, 11_000)
REGRESSIONS = (
    Schedule.of(213, 1, 3, 4, 5),  # A learner ended because its challenge was under way for more than 5 s.
    Schedule.of(20290, 0, 1, 2),  # An idle actor, whose grants came after they had been taken back, stayed stuck.
)
"""Schedules that have found a fault."""


def check(*schedules: Schedule | int) -> None:
    failure = first_failure(schedules)
    assert failure is None, report(shrunk(failure))


def test_runs_with_faults_keep_their_guarantees() -> None:
    check(*SEEDS)


def test_schedules_that_found_a_fault_find_none() -> None:
    check(*REGRESSIONS)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(NIGHTLY.start, NIGHTLY.stop, 500))
def test_many_runs_with_faults_keep_their_guarantees(first: int) -> None:
    check(*range(first, first + 500))


def test_a_seed_gives_one_schedule_in_every_process() -> None:
    program = "import sys; from tests.support.simulation.runs import run; print(run(3).digest, run(4).digest)"
    digests = (run(3).digest, run(4).digest)
    assert len(set(digests)) == 2
    command, environment = [sys.executable, "-c", program], {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.check_output(command, env=environment, timeout=PATIENCE_S, text=True)
    assert tuple(map(int, other.split())) == digests


# Faults of production code, each of which some seed finds


async def acknowledge_before_storing(servicer: Any, stream: Any) -> None:
    head = stream.intake._head
    if head is not None:
        stream.outbox.acknowledge(head.last_sequence)
        await asyncio.sleep(0.2)
    await _seal(servicer, stream)


def keep_grants_of_the_dead(gate: Any, actor: Any) -> None:
    gate._returned.pop(actor, None)


def forget_unacknowledged(sink: Any, call: Any, first: Any) -> None:
    sink._pending.clear()
    _resume(sink, call, first)


def ignore_power_cuts(mark: Any, *arguments: Any, boot: str, **options: Any) -> None:
    _remember(mark, *arguments, boot="the same", **options)


def resume_at_the_last_commit(leases: Any) -> None:
    leases.next_number = leases._segments.session.next_batch


_seal, _resume = AppendServicer._seal, ReplaySegmentSink._resume
_remember = VersionMark.__init__


@pytest.mark.parametrize(
    ("owner", "name", "faulty", "violated"),
    [
        (AppendServicer, "_seal", acknowledge_before_storing, "was acknowledged and is not stored"),
        (Intake, "close", lambda intake: None, "the gate serves other actors"),
        (Gate, "_take_back", lambda gate, actor: actor.grants.clear(), "actors have other grants"),
        (ReplaySegmentSink, "_resume", forget_unacknowledged, "InvalidSegment"),
        (CommitLedger, "resend", lambda ledger: None, "was due"),
        (
            SamplingPlan,
            "outstanding_limit",
            property(lambda plan: (plan.off_policy_degree + 2) * plan.fresh_segments),
            "exceed",
        ),
        (Ages, "oldest_fresh", lambda ages, number: 0, "fresh segments of the ages"),
        (VersionMark, "use", lambda mark, version: None, "by two learners"),
        (VersionMark, "__init__", ignore_power_cuts, "by two learners"),
        (Ownership, "check_holder", lambda ownership, call, prover: None, "a stranger was answered"),
        (Leases, "resume_session", resume_at_the_last_commit, "InvalidSegment"),
        (CommitLedger, "resend", lambda ledger: ledger._unsent.extend([*ledger._unanswered][1:]), "was due"),
    ],
)
def test_a_fault_of_the_services_is_found(
    owner: type, name: str, faulty: Callable[..., Any], violated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, faulty)
    failure = first_failure(range(200, 260))
    assert failure is not None
    assert any(violated in each for each in failure.violations), failure.violations


def test_an_actor_that_keeps_returned_grants_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplaySegmentSink, "_return_grants", lambda sink, count: None)
    assert any("never were those of the gate" in each for each in run(0).violations)
