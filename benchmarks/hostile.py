"""`make bench-hostile`: whether malformed requests break the replay service, or hold back those that are not.

A healthy actor and learner work at a steady pace, first alone, then beside hostile clients that make so many forged
calls (`forged_requests.py`). The pace is a part of what the pair gets when it asks as fast as it can, since on a few
cores the hostile clients' own work would be counted otherwise; they run with the lowest priority, at a bounded rate.

It fails if a call is answered with another status than the contract has for it, hangs, leaves a traceback in the log,
if the service dies, if its anonymous memory grows, if a batch holds anything that nobody sent, or if the healthy pair
loses more than a tenth of its throughput. Writes build/bench/hostile.json.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

from healthy_pair import HealthyPair, Served, plan_of
from marked_segments import SCHEMA
from replay_process import ReplayProcess, replay_process
from rich.console import Console
from rich.table import Table

from penstock.apps import allocator
from penstock.replay.ring_store import HEADER
from penstock.wire.replay import encode_plan

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "build" / "bench" / "hostile.json"
CAPACITY_BYTES = 64 * 2**20
ALONE_S = 5.0
PACE = 0.4
"""Of what the pair gets at its best."""
WARM_UP = 0.2
"""Of the calls, before memory is looked at: pools and caches fill."""
KEPT = 0.9
MOST_GROWTH_BYTES = 16 * 2**20
IMPRECISE = ("UNKNOWN", "INTERNAL")


def attack(
    service: ReplayProcess, pair: HealthyPair, *, requests: int, per_s: float, seed: int
) -> "subprocess.Popen[bytes]":
    """Starts a process of hostile clients."""
    capacity = CAPACITY_BYTES // (HEADER.itemsize + SCHEMA.segment_bytes)
    command = [sys.executable, str(HERE / "hostile_client.py"), "--address", service.address]
    command += ["--plan", encode_plan(pair.plan).SerializeToString().hex(), "--capacity", str(capacity)]
    command += ["--requests", str(requests), "--per-s", str(per_s), "--seed", str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def attacked(
    service: ReplayProcess, pair: HealthyPair, *, requests: int, per_s: float, seed: int, pace: float
) -> tuple[dict[str, object], Served]:
    """What the hostile clients were answered, and what the pair got meanwhile."""
    process = attack(service, pair, requests=requests, per_s=per_s, seed=seed)
    try:
        served = pair.serve(
            10.0 * requests / per_s + 60.0, batches_per_s=pace, until=lambda: process.poll() is not None
        )
        output, _ = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, f"the hostile clients failed with {process.returncode}"
    return json.loads(output), served


def children_cpu_s() -> float:
    """User and system seconds of the processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table_of(answers: "Counter[tuple[str, str, str]]") -> Table:
    """Kinds of requests by status."""
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
    """Measures, prints, writes; 0 if all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--per-s", type=float, default=400.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    allocator.keep_freed_memory()
    warm_up, rate = int(WARM_UP * arguments.requests), arguments.per_s
    with replay_process(CAPACITY_BYTES) as service:
        pair = HealthyPair(service.address, plan_of())
        pair.serve(2.0)
        best = pair.serve(ALONE_S)
        pace = PACE * best.batches_per_s
        alone_cpu = service.cpu_s()
        alone = pair.serve(ALONE_S, batches_per_s=pace)
        alone_cpu = (service.cpu_s() - alone_cpu) / alone.seconds
        first, _ = attacked(service, pair, requests=warm_up, per_s=rate, seed=arguments.seed, pace=pace)
        before, used, theirs = service.memory_bytes("RssAnon"), service.cpu_s(), children_cpu_s()
        rest = arguments.requests - warm_up
        second, beside = attacked(service, pair, requests=rest, per_s=rate, seed=arguments.seed + 1, pace=pace)
        grown = service.memory_bytes("RssAnon") - before
        used, theirs = (service.cpu_s() - used) / beside.seconds, (children_cpu_s() - theirs) / beside.seconds
        handled, alive = service.handled(), service.alive
        pair.close()
        log = service.log()
    answers: Counter[tuple[str, str, str]] = Counter()
    for part in (first, second):
        for kind, method, status, count in part["answers"]:
            answers[kind, method, status] += count
    wrong = [*first["wrong"], *second["wrong"]]
    kept = beside.batches_per_s / alone.batches_per_s
    checks = {
        "every call was answered with a status that fits": not wrong,
        "none was UNKNOWN or INTERNAL, as the service counted": not any(code in IMPRECISE for _, code in handled),
        "no traceback in the log": "Traceback" not in log and "rror" not in log,
        "the service lives": alive,
        f"its anonymous memory grew by at most {MOST_GROWTH_BYTES >> 20} MB": grown <= MOST_GROWTH_BYTES,
        "every segment in every batch was as somebody had sent it": alone.damaged + beside.damaged == 0,
        f"the healthy pair kept {KEPT:.0%} of its throughput": kept >= KEPT,
    }
    console = Console(width=140)
    console.print(table_of(answers))
    for what in wrong[:20]:
        console.print(f"  {what}", markup=False)
    if log.count("\n") > 2:
        console.print(log[:3000], markup=False)
    console.print(
        f"batches a second: {best.batches_per_s:.0f} as fast as they come, {alone.batches_per_s:.1f} paced alone,"
        f" {beside.batches_per_s:.1f} paced beside {rate:.0f} hostile calls a second ({kept:.1%})\n"
        f"the learner's wait for a batch, 99th percentile and longest, ms: {1e3 * alone.wait_p99_s:.1f} and"
        f" {1e3 * alone.wait_max_s:.0f} alone, {1e3 * beside.wait_p99_s:.1f} and {1e3 * beside.wait_max_s:.0f} beside\n"
        f"beside them the service used {used:.2f} of a core and the hostile clients {theirs:.2f}"
        f" (the service alone: {alone_cpu:.2f})\n"
        f"anonymous memory: {before / 2**20:.1f} MB after {warm_up:,} calls,"
        f" {grown / 2**20:+.1f} MB after {rest:,} more;"
        f" longest answer {max(first['longest_s'], second['longest_s']):.2f} s;"
        f" {first['raw_connections'] + second['raw_connections']} connections that were no calls"
    )
    for what, holds in checks.items():
        console.print(f"{'ok  ' if holds else 'FAIL'} {what}")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(
        json.dumps(
            {
                "requests": arguments.requests,
                "per_s": rate,
                "best": asdict(best),
                "alone": asdict(alone),
                "beside": asdict(beside),
                "kept": kept,
                "service_cores": {"alone": alone_cpu, "beside": used},
                "hostile_cores": theirs,
                "rss_anon_bytes": before,
                "rss_anon_growth_bytes": grown,
                "answers": [[*what, count] for what, count in sorted(answers.items())],
                "handled": [[*what, count] for what, count in sorted(handled.items())],
                "wrong": wrong,
                "checks": checks,
            },
            indent=2,
        )
    )
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
