"""`make stress-hostile`: the replay service and a healthy pair of clients under malformed requests.

A healthy actor and learner work at a steady pace, alternately alone and beside hostile clients that send forged
requests (`tests/support/services/forged_requests.py`). The pace is a fraction of the pair's highest throughput, because
on a few cores the CPU time of the hostile clients would otherwise count as a loss. The hostile clients have the lowest
priority and a bounded rate.

The test fails if a call receives a status that the contract doesn't allow, hangs, or leaves a traceback in the log, if
the service dies or its anonymous memory grows, if a batch contains a damaged segment, or if the pair loses more than a
tenth of its throughput. The result is build/bench/hostile.json.
"""

import json
import resource
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.process.service import keep_freed_memory
from penstock.replay.store.layout import HEADER
from penstock.wire.batches import encode_plan
from stress import results
from stress.healthy_pair import HealthyPair, Served, plan_of
from stress.replay_process import ReplayProcess, replay_process
from stress.support.marked_segments import SCHEMA

CAPACITY_BYTES = 64 * 2**20
ALONE_S = 5.0
ROUNDS = 5
"""Number of spans alone and of spans with hostile clients; they alternate, so that other load affects both."""
WARM_UP_ROUNDS = 2
"""Rounds before memory is measured, in which pools and caches fill."""
PACE = 0.4
"""Pace of the pair, as a fraction of its highest throughput."""
KEPT = 0.9
MOST_GROWTH_BYTES = 16 * 2**20
IMPRECISE = ("UNKNOWN", "INTERNAL")


def attack(
    service: ReplayProcess, pair: HealthyPair, *, requests: int, per_s: float, seed: int
) -> "subprocess.Popen[bytes]":
    """Starts a process of hostile clients."""
    capacity = CAPACITY_BYTES // (HEADER.itemsize + SCHEMA.segment_bytes)
    command = [sys.executable, "-m", "stress.hostile_client", "--address", service.address]
    command += ["--plan", encode_plan(pair.plan).SerializeToString().hex(), "--capacity", str(capacity)]
    command += ["--requests", str(requests), "--per-s", str(per_s), "--seed", str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def attacked(
    service: ReplayProcess, pair: HealthyPair, *, requests: int, per_s: float, seed: int, pace: float
) -> tuple[dict[str, Any], Served]:
    """Returns the answers to the hostile clients, and the throughput of the pair meanwhile."""
    process = attack(service, pair, requests=requests, per_s=per_s, seed=seed)
    try:
        served = pair.run(10.0 * requests / per_s + 60.0, batches_per_s=pace, until=lambda: process.poll() is not None)
        output, _ = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, f"the hostile clients failed with {process.returncode}"
    return json.loads(output), served


def children_cpu_s() -> float:
    """Returns user and system seconds of the ended child processes of this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def alarms_in(log: str) -> list[str]:
    """Returns the log lines that are not events of level info or warning: errors, tracebacks, and gRPC's own lines."""

    def is_event(line: str) -> bool:
        try:
            return json.loads(line)["level"] in ("info", "warning")
        except (ValueError, TypeError, KeyError):
            return False

    return [line for line in log.splitlines() if not is_event(line)]


def table_of(answers: "Counter[tuple[str, str, str]]") -> Table:
    """Returns a table of the kinds of requests by status."""
    statuses = sorted({status for _, _, status in answers})
    table = Table("kind", *statuses)
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (kind, _, status), count in answers.items():
        kinds[kind][status] += count
    for kind, counts in sorted(kinds.items()):
        table.add_row(kind, *(f"{counts[status]:,}" if counts[status] else "" for status in statuses))
    table.add_section()
    totals = Counter(status for (_, _, status), count in answers.items() for _ in range(count))
    table.add_row("all", *(f"{totals[status]:,}" for status in statuses))
    return table


def main() -> int:
    """Measures, prints and writes everything; returns 0 if all bounds held."""
    parser = results.options(__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--per-s", type=float, default=400.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    keep_freed_memory()
    rate, longest_s, raw = arguments.per_s, 0.0, 0
    wrong: list[str] = []
    answers: Counter[tuple[str, str, str]] = Counter()
    alone, beside, memory = [], [], []
    cores = {"service alone": 0.0, "service beside": 0.0, "hostile clients": 0.0}
    with replay_process(CAPACITY_BYTES) as service:
        pair = HealthyPair(service.address, plan_of())
        pair.run(2.0)
        best = pair.run(ALONE_S)
        pace = PACE * best.batches_per_s
        for number in range(ROUNDS):
            used = service.cpu_s()
            alone.append(pair.run(ALONE_S, batches_per_s=pace))
            cores["service alone"] += (service.cpu_s() - used) / alone[-1].seconds / ROUNDS
            used, theirs = service.cpu_s(), children_cpu_s()
            came, served = attacked(
                service,
                pair,
                requests=arguments.requests // ROUNDS,
                per_s=rate,
                seed=arguments.seed + number,
                pace=pace,
            )
            beside.append(served)
            cores["service beside"] += (service.cpu_s() - used) / served.seconds / ROUNDS
            cores["hostile clients"] += (children_cpu_s() - theirs) / served.seconds / ROUNDS
            memory.append(service.memory_bytes("RssAnon"))
            for kind, method, status, count in came["answers"]:
                answers[kind, method, status] += count
            wrong += came["wrong"]
            longest_s, raw = max(longest_s, came["longest_s"]), raw + came["raw_connections"]
        handled, alive = service.handled(), service.alive
        pair.close()
        alarms = alarms_in(service.log())
    rates = [sum(span.batches for span in spans) / sum(span.seconds for span in spans) for spans in (alone, beside)]
    kept, grown = rates[1] / rates[0], memory[-1] - memory[WARM_UP_ROUNDS - 1]
    checks = {
        "every call was answered with a permitted status": not wrong,
        "the service counted no status UNKNOWN or INTERNAL": not any(code in IMPRECISE for _, code in handled),
        "no error and no traceback in the log": not alarms,
        "the service is alive": alive,
        f"its anonymous memory grew by at most {MOST_GROWTH_BYTES >> 20} MB": grown <= MOST_GROWTH_BYTES,
        "every segment in every batch was as it was sent": not any(span.damaged for span in (*alone, *beside)),
        f"the healthy pair kept {KEPT:.0%} of its throughput": kept >= KEPT,
    }
    console = Console(width=140)
    console.print(table_of(answers))
    for what in wrong[:20]:
        console.print(f"  {what}", markup=False)
    for line in alarms[:20]:
        console.print(f"  {line}", markup=False)
    waits = [(max(s.wait_p99_s for s in spans), max(s.wait_max_s for s in spans)) for spans in (alone, beside)]
    console.print(
        f"batches per second: {best.batches_per_s:.0f} unpaced, {rates[0]:.1f} paced alone, {rates[1]:.1f}"
        f" paced under {rate:.0f} hostile calls per second ({kept:.1%})\n"
        f"the learner's wait for a batch, 99th percentile and longest, ms: {1e3 * waits[0][0]:.1f} and"
        f" {1e3 * waits[0][1]:.0f} alone, {1e3 * waits[1][0]:.1f} and {1e3 * waits[1][1]:.0f} beside\n"
        f"cores: {', '.join(f'{name} {value:.2f}' for name, value in cores.items())}\n"
        f"anonymous memory after each fifth, MB: {', '.join(f'{size / 2**20:.1f}' for size in memory)}"
        f" (beside the store's {CAPACITY_BYTES >> 20}); longest answer {longest_s:.2f} s; {raw} connections without a"
        " call"
    )
    for what, holds in checks.items():
        console.print(f"{'ok  ' if holds else 'FAIL'} {what}")
    found = {
        "requests": arguments.requests,
        "per_s": rate,
        "best": asdict(best),
        "alone": [asdict(span) for span in alone],
        "beside": [asdict(span) for span in beside],
        "kept": kept,
        "cores": cores,
        "rss_anon_bytes": memory,
        "longest_answer_s": longest_s,
        "raw_connections": raw,
        "answers": [[*what, count] for what, count in sorted(answers.items())],
        "handled": [[*what, count] for what, count in sorted(handled.items())],
        "wrong": wrong,
        "checks": checks,
    }
    results.write(arguments, found)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
