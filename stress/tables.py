"""Writes what the stress programs found into docs/benchmarks-failures.md, from their result files.

    python -m stress.tables                                   # writes the page
    python -m stress.tables --adopt build/bench/torture.json  # first copies new results to results/

A result that is not in results/ is shown as not measured. `stress/tests` checks that the page is current.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.results.provenance import ROOT

PAGE, RESULTS = ROOT / "docs" / "benchmarks-failures.md", ROOT / "results"

Document = Mapping[str, Any]
MB = 2**20
_WITH = {True: "with", False: "without"}
_QUIET_PAIR = "with clients of the lowest priority, a pair at 40% of its pace kept"


def torture(found: Document) -> str:
    """Describes a result of `make stress-torture`."""
    ready, checks = sorted(found["ready_s"]), found["found"]
    slow = ready[int(0.95 * (len(ready) - 1))]
    parts = (
        f"{sum(found['kills'].values()):,} kills in {found['options']['seconds']:,.0f} s",
        f"{len(checks)} checks of the store, {_count(len(found['violations']), 'violation')}",
        f"root off by {max(each['root_error'] for each in checks):.1e} at most",
        f"each count within {found['largest_deviation']:.2f} of its share",
        f"p = {found['p_value']:.3f} over {found['draws_kept']:,} draws",
        f"ready again after {statistics.median(ready):.2f} s (median), {slow:.2f} s (95%), {ready[-1]:.2f} s (longest)",
    )
    return "; ".join(parts)


def priority_updates(found: Document) -> str:
    """Describes a result of `make stress-priority-updates`."""
    return "; ".join(
        f"{each['updates']:,} through {name}: {each['wrong']} wrong, {each['miscounted']} miscounted, root off by"
        f" {each['root_error']:.1e}"
        for name, each in found["outcomes"].items()
    )


def hostile(found: Document) -> str:
    """Describes a result of `make stress-hostile`."""
    memory = ", ".join(f"{size / MB:.0f}" for size in found["rss_anon_bytes"])
    parts = (
        f"{found['requests']:,} requests, {len(found['wrong'])} answered otherwise than the contract allows",
        f"slowest answer {found['longest_answer_s']:.2f} s",
        f"anonymous memory {memory} MB after each fifth",
        f"{_QUIET_PAIR} {found['kept']:.1%}",
    )
    return "; ".join(parts)


def snapshot_latency(found: Document) -> str:
    """Describes a result of `make stress-snapshot-latency`."""
    return "; ".join(
        f"{each['segment']}: {each['p999_ratio']:.2f} times and {each['longer_stall_ms']:+.1f} ms, snapshots of"
        f" {each['snapshot_bytes'] / 2**30:.1f} GiB in {each['snapshot_seconds']:.0f} s"
        for each in found["segments"]
    )


def learner_kills(found: Document) -> str:
    """Describes a result of `make stress-learner-kills`."""
    kills = found["kills"]
    parts = (
        f"{_count(len(kills), 'kill')}, {_count(len(found['violations']), 'violation')}",
        f"at most {_count(max(each['first'] - each['used'] for each in kills), 'version')} lost by a kill",
        f"mass after over mass before {min(each['mass_ratio'] for each in kills):.4f} at least",
        f"of {sum(each['waiting'] for each in kills):,} fresh segments that waited at a kill,"
        f" {sum(each['late'] for each in kills)} became late",
        f"training again after {statistics.median(each['restart_s'] for each in kills):.1f} s (median)",
    )
    return "; ".join(parts)


def fuzz(found: Document) -> str:
    """Describes a result of `make stress-fuzz`."""
    runs = found["results"]

    def most(name: str) -> Any:
        return max(each[name] for each in runs)

    parts = (
        ", ".join(f"{each['inputs']:,} {_WITH[each['certified']]} certificates" for each in runs),
        f"at most {most('grown_bytes') / MB:.1f} MiB, {most('more_threads')} threads and {most('more_descriptors')}"
        " descriptors more",
        f"{sum(each['damaged'] for each in runs)} damaged segments",
        f"{most('logged_bytes') / 2**10:.0f} KiB logged, {most('undelivered')} tracebacks of gRPC",
        "alive" if all(each["alive"] and each["answers"] for each in runs) else "**not alive**",
        f"{_QUIET_PAIR} {min(each['kept'] for each in runs):.1%}",
    )
    return "; ".join(parts)


def joins(found: Document) -> str:
    """Describes a result of `make stress-joins`."""
    return "; ".join(
        f"{each['actors']:,} in {each['seconds']:.1f} s, {_count(each['refusals'], 'request')} repeated,"
        f" {each['kept']:.0%} of the pace kept, {_count(each['breaks'], 'stream')} of the run broken"
        for each in found["rounds"]
    )


PROMISES: tuple[tuple[str, str, Callable[[Document], str]], ...] = (
    (
        "torture",
        "replay service, learner and actors are killed every few seconds: nothing acknowledged is lost or stored twice,"
        " the root is the sum of the leaves, draws are in proportion",
        torture,
    ),
    (
        "priority_updates",
        "10^7 priority updates, four batches in flight, half of the ring turning over: none applied to the wrong"
        " segment",
        priority_updates,
    ),
    ("learner_kills", "the learner of a run is killed 100 times: at most one version is lost", learner_kills),
    ("joins", "1,000 and 2,000 actors join at once: within 10 s, and the run keeps 90% of its pace", joins),
    ("hostile", "10^5 malformed requests: no crash, no hang, no growth", hostile),
    ("fuzz", "10^5 malformed TLS handshakes and HTTP/2 frames: no crash, no hang, no growth", fuzz),
    (
        "snapshot_latency",
        "a snapshot in progress: 99.9th percentile of a learner's wait at most 1.5 times, longest stall at most 20 ms"
        " longer",
        snapshot_latency,
    ),
)
"""Name of the result, promise, and what was found."""


def promises(results: Path) -> str:
    """Returns the table of all results that are one sentence."""
    rows = []
    for name, promise, describe in PROMISES:
        found = _read(results, name)
        rows.append((promise, "not measured" if found is None else describe(found), _origin(name, found)))
    return _table(("promise", "measured", "command, duration, commit"), rows)


def kills(results: Path) -> str:
    """Returns what `make stress-kills` found for each form of a run."""
    found = _read(results, "kills")
    rows = []
    for each in found["forms"] if found is not None else ():
        accounts = each["accounts"].values()
        times = ", ".join(f"{name} {max(seconds):.1f}" for name, seconds in sorted(each["recovery_s"].items()))
        acknowledged, *wrong = (
            sum(of[name] for of in accounts) for name in ("acknowledged", "lost", "duplicated", "torn", "backwards")
        )
        killed = ", ".join(f"{count} {name}" for name, count in sorted(each["kills"].items()))
        numbers = ", ".join(f"{total:,}" for total in (*wrong, len(each["violations"])))
        rows.append((each["form"], killed, f"{acknowledged:,}", numbers, times))
    wrongs = "lost, doubled, torn, of older versions, violations"
    heading = ("form", "kills", "acknowledged segments", wrongs, "longest recovery, s")
    return _with_origin("kills", found, heading, rows)


def attacks(results: Path) -> str:
    """Returns what `make stress-attacks` left of the pace of a healthy run; in bold, less than the bound."""
    found = _read(results, "attacks")
    runs = found["runs"] if found is not None else []
    titles = [f"{each['pace']}, {'with' if each['certified'] else 'no'} certificates" for each in runs]
    broken = [(title, what) for title, each in zip(titles, runs, strict=True) for what in each["broken"]]
    rows, in_table = [], set()
    for of_runs in zip(*(each["attacks"] for each in runs), strict=True):
        cells = []
        for title, each in zip(titles, of_runs, strict=True):
            kept = (title, f"{each['attack']}: kept {each['kept']:.0%}")
            in_table.add(kept)
            mark = "**" if kept in broken else ""
            cells.append(f"{mark}{each['kept']:.0%}{mark}")
        rows.append((of_runs[0]["attack"], *cells))
    memory = [max((each["memory_mb"][at] for run in runs for each in run["attacks"]), default=0.0) for at in (0, 1)]
    after = f"The replay service took at most {memory[0]:.0f} MB, and the learner {memory[1]:.0f} MB"
    text = _with_origin("attacks", found, ("pace kept", *titles), rows, after)
    others = [f"\n**Broken**, {title}: {what}." for title, what in broken if (title, what) not in in_table]
    return "\n".join([text, *others])


def soak(results: Path) -> str:
    """Returns what `make stress-soak` found to grow: for each quantity, the service in which it grew the most."""
    found = _read(results, "soak")
    rows = []
    for what, of_services in found["growth"].items() if found is not None else ():
        name = max(of_services, key=of_services.get)
        values = [each["values"][what].get(name, 0.0) for each in found["samples"]] if found is not None else []
        ends = [f"{values[at]:,.0f}" for at in (0, -1)]
        bound = f"{found['most'][what]:g}" if found is not None else ""
        quantity, minutely, _ = what.partition(" a minute")
        rows.append((quantity, name, *ends, f"{of_services[name]:+.1f}{minutely}", bound))
    if found is not None:
        after = f"{found['killed']} killed and {found['joined']} joining actors, {found['minutes']:g} minutes"
    else:
        after = ""
    heading = ("quantity", "grew most in", "begin", "end", "growth after the first fifth", "at most")
    return _with_origin("soak", found, heading, rows, after)


PARTS: Mapping[str, Callable[[Path], str]] = {
    "promises": promises,
    "kills of all services": kills,
    "attacks": attacks,
    "soak": soak,
}
"""Text of each generated part, by its name."""


def _read(results: Path, name: str) -> Document | None:
    path = results / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _origin(name: str, found: Document | None) -> str:
    """Returns the command with its duration, commit and date."""
    if found is None:
        return f"`make stress-{name.replace('_', '-')}`"
    took = f", {found['took_s'] / 60:.0f} min" if "took_s" in found else ""
    command = found.get("command", f"make stress-{name.replace('_', '-')}")
    commit, _, changed = found["commit"].partition("+")
    at = f"`{commit[:12]}`{' with changes' if changed else ''}"
    return f"`{command}`{took}, at {at}, {found.get('date', 'no date')[:10]} ([result](../results/{name}.json))"


def _with_origin(
    name: str, found: Document | None, heading: tuple[str, ...], rows: Iterable[tuple[str, ...]], after: str = ""
) -> str:
    """Returns a table with a line about its origin; without a result, that it was not measured."""
    if found is None:
        return f"`make stress-{name}`: not measured."
    machine = f" on {found['machine']}" if "machine" in found else ""
    return f"{_table(heading, rows)}\n\n{f'{after}: ' if after else ''}{_origin(name, found)}{machine}."


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, tuple("---" for _ in heading), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def with_parts(text: str, results: Path = RESULTS) -> str:
    """Returns the text of the page with the current parts between their marks.

    Raises `ValueError` if a mark is missing.
    """
    for name, part in PARTS.items():
        begin, end = f"<!-- generated by stress/tables.py: {name} -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{PAGE} has no marks for {name!r}: add {begin} and {end}")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{part(results)}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adopt", nargs="*", type=Path, default=[], help="new result files to copy to results/")
    for result in parser.parse_args().adopt:
        shutil.copy(result, RESULTS / result.name)
    PAGE.write_text(with_parts(PAGE.read_text()))


if __name__ == "__main__":
    main()
