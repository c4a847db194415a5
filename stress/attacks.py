"""`make stress-attacks`: throughput of a healthy actor and learner during attacks on the replay service.

The attacker is an insider: it knows the run's number, and has places with their tokens. On a service with certificates,
where others get no connection, it also has the certificate of an actor. The healthy pair works at a steady pace, a
fraction of its highest throughput. Each attack runs in a separate process with the lowest priority. Spans with and
without the attack alternate, so that other load on the machine affects both. The test fails if an attack costs the pair
more than a tenth of its throughput, if the pair receives an error or a damaged segment, or if the service's health
check takes longer than 5 s. The result is build/bench/attacks.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from helpers.provenance import of_this_run
from penstock.process import allocator
from penstock.rpc.health import is_serving
from penstock.security.authority import issue
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from penstock.types.run import RunIdentity
from stress.attackers import ATTACKS, Target
from stress.healthy_pair import HealthyPair, Served, plan_of
from stress.replay_process import ReplayProcess, replay_process

OUTPUT = Path(__file__).parent.parent / "build" / "bench" / "attacks.json"
CAPACITY_BYTES = 64 * 2**20
SPAN_S, SETTLE_S, ROUNDS = 5.0, 2.0, 3
PACE = 0.4
"""Pace of the pair, as a fraction of its highest throughput."""
KEPT = 0.9
HEALTH_S = 5.0


@dataclass(frozen=True, slots=True)
class Attacked:
    """What an attack did to the pair and the service.

    Attributes:
        attack: Name of the attack.
        certified: Whether the service has certificates.
        batches_per_s_alone, batches_per_s_beside: Batches per second without the attack and beside it.
        kept: Ratio of the two.
        longest_wait_ms_alone, longest_wait_ms_beside: The learner's longest wait for a batch, in milliseconds.
        health_answered: Whether health checks were answered in time.
        damaged_segments: Segments that the learner received and the actor had not sent so.
        holds: Whether all bounds held.
    """

    attack: str
    certified: bool
    batches_per_s_alone: float
    batches_per_s_beside: float
    kept: float
    longest_wait_ms_alone: float
    longest_wait_ms_beside: float
    health_answered: bool
    damaged_segments: int
    holds: bool


def measure_attack(service: ReplayProcess, pair: HealthyPair, name: str, pace: float, target: Target) -> Attacked:
    """Measures the pair alone and during an attack, in turn."""
    command = [sys.executable, "-m", "stress.attackers", name, "--address", service.address]
    command += ["--run", str(target.identity.number), "--key", target.identity.key.hex()]
    command += ["--certificate", str(target.files.certificate)] if target.files is not None else []
    alone, beside, healthy = list[Served](), list[Served](), True
    for _ in range(ROUNDS):
        alone.append(pair.run(SPAN_S, batches_per_s=pace))
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            pair.run(SETTLE_S, batches_per_s=pace)
            beside.append(pair.run(SPAN_S, batches_per_s=pace))
            healthy &= is_serving(service.address, HEALTH_S, target.credentials, "replay")
            assert process.poll() is None, f"the attack {name!r} ended by itself"
        finally:
            process.kill()
            process.wait()
    rates = [sum(s.batches for s in spans) / sum(s.seconds for s in spans) for spans in (alone, beside)]
    waits = [1e3 * max(span.wait_max_s for span in spans) for spans in (alone, beside)]
    damaged, kept = sum(span.damaged for span in (*alone, *beside)), rates[1] / rates[0]
    holds = kept >= KEPT and healthy and not damaged and service.alive
    return Attacked(
        attack=name,
        certified=target.files is not None,
        batches_per_s_alone=rates[0],
        batches_per_s_beside=rates[1],
        kept=kept,
        longest_wait_ms_alone=waits[0],
        longest_wait_ms_beside=waits[1],
        health_answered=healthy,
        damaged_segments=damaged,
        holds=holds,
    )


def measure(files: dict[Role, Files]) -> tuple[list[Attacked], bool]:
    """Measures every attack on a service, which has certificates if there are `files`.

    Returns the results, and whether the service's log has a traceback.
    """
    identity = RunIdentity.draw()
    certificate = files["replay"].certificate if files else None

    def credentials(role: Role) -> Credentials | None:
        return Credentials(files[role], role) if files else None

    with (
        tempfile.TemporaryDirectory() as folder,
        replay_process(CAPACITY_BYTES, folder=Path(folder), certificate=certificate) as service,
    ):
        target = Target(service.address, identity, files["actor"] if files else None)
        pair = HealthyPair(service.address, plan_of(identity=identity), credentials=credentials, identity=identity)
        pair.run(SETTLE_S)
        pace = PACE * pair.run(SPAN_S).batches_per_s
        results = [measure_attack(service, pair, name, pace, target) for name in ATTACKS]
        pair.close()
        return results, "Traceback" in service.log()


def show(results: Sequence[Attacked]) -> None:
    """Prints all results as a table."""
    table = Table("attack", "certificates", "alone, batches/s", "beside", "kept", "longest wait, ms", "")
    for each in results:
        table.add_row(
            each.attack,
            "with" if each.certified else "without",
            f"{each.batches_per_s_alone:.1f}",
            f"{each.batches_per_s_beside:.1f}",
            f"{each.kept:.1%}",
            f"{each.longest_wait_ms_alone:.0f} and {each.longest_wait_ms_beside:.0f}",
            "ok" if each.holds else "FAIL",
        )
    Console(width=130).print(table)


def main() -> int:
    """Measures, prints and writes everything; returns 0 if all bounds held."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    allocator.keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        issued = issue(Path(folder), "attacked", days=7, hosts={}, now=time.time())
        measured = [measure({}), measure({each.identity.role: each.files for each in issued})]
    results, traceback = [each for found, _ in measured for each in found], any(traced for _, traced in measured)
    show(results)
    if traceback:
        print("FAIL the log of a service contains a traceback")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    content = {**of_this_run(), "attacks": [asdict(each) for each in results], "traceback": traceback}
    OUTPUT.write_text(json.dumps(content, indent=2) + "\n")
    return 0 if all(each.holds for each in results) and not traceback else 1


if __name__ == "__main__":
    sys.exit(main())
