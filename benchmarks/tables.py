"""Writes measurements into README.md and docs, and the charts of README.md, from the result files.

    python -m benchmarks.tables                                  # writes the pages
    python -m benchmarks.tables --adopt build/bench/loop.json    # first copies a new result to results/

After --adopt, delete the lines `gaps`, `published` and `date` of the file in results/index.toml, if it has them. A part
of README.md is empty as long as `tests.support.results.result_files.is_quotable` refuses its file; the charts state
their commits. A test checks that pages and charts are current.
"""

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import (
    charts,
    comparing_tables,
    degrees_table,
    forms_tables,
    gpu_tables,
    insertion_tables,
    loop_results,
    many_actors_tables,
    shared_policy_table,
    zoo_report,
)
from benchmarks.loop_results import Goal
from benchmarks.wide_layers import LEAST_PACE, ratios_of
from tests.support.results.result_files import (
    PAGE_OF_CHANGES,
    Index,
    is_quotable,
    numbered_changes,
    origins,
    read_index,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
IMAGES = ROOT / "docs" / "images"
TITLES = {
    "penstock": "**Penstock**",
    "sb3": "Stable-Baselines3 2.9.2, PPO",
    "cleanrl": "CleanRL, `ppo.py`",
    "pufferlib": "PufferLib 3.0.0, `PuffeRL`",
    "rllib": "RLlib 2.60.0, PPO",
    "sample_factory": "Sample Factory 2.1.1, APPO",
    "fifo": "the same processes over shared memory",
}
LEAST_ROUNDS = 5
"""Rounds from which a page makes a claim."""
MOST_LOAD = 5.0
"""Largest load average before a run on a quiet machine of two cores, which the run before leaves behind."""

Document = Mapping[str, Any]
Case = Mapping[str, Any]


def like_for_like(document: Document) -> str:
    """Returns pace and CPU time of each system on the same work, one column for each task and size of minibatches."""
    cases = {(case["system"], case["env_id"], case["minibatch"]): case for case in document["like_for_like"]}
    works = list(dict.fromkeys(place[1:] for place in cases))
    bounds = {
        (each["env_id"], each["minibatch"]): f"{each['env_steps_per_s']:,.0f}"
        for each in document["pipeline_bound"]
        if each.get("env_steps_per_s")
    }
    heading = [
        f"| system | {' | '.join(f'{env_id}, {minibatch:,}' for env_id, minibatch in works)} |",
        f"|---|{'---|' * len(works)}",
    ]

    def rows(name: str, digits: int, of_ratio: int) -> list[str]:
        return [
            f"| {TITLES[system]} | "
            + " | ".join(
                _beside_ours(cases.get((system, *work)), cases.get(("penstock", *work)), name, digits, of_ratio)
                for work in works
            )
            + " |"
            for system in dict.fromkeys(place[0] for place in cases)
        ]

    return "\n".join(
        [
            _sentence(document["settings"]["like_for_like"]),
            "",
            "Steps/s by task and rows of a minibatch; in brackets, how many times as many Penstock takes:",
            "",
            *heading,
            *rows("env_steps_per_s", 0, 1),
            f"| bound of a pipeline of two processes | {' | '.join(bounds.get(work, '') for work in works)} |",
            "",
            "CPU seconds per million steps; in brackets, the share of them that Penstock takes:",
            "",
            *heading,
            *rows("cpu_s_per_million_steps", 1, 2),
            "",
            "How each system deviates from the common work:",
            "",
            *(f"- {TITLES[system]}: {text}" for system, text in document["deviations"].items()),
        ]
    )


def wide_layers(document: Document) -> str:
    """Returns pace and CPU time of each system on the same work, one row for each width of the hidden layers."""
    systems, rows = list(dict.fromkeys(case["system"] for case in document["cases"])), []
    for units in dict.fromkeys(case["units"] for case in document["cases"]):
        ours, *peers = (case for case in document["cases"] if case["units"] == units)
        cells = [
            f"{ours[name]:,.{digits}f}, "
            + ", ".join(f"{peer[name]:,.{digits}f} ({ours[name] / peer[name]:.{of_ratio}f})" for peer in peers)
            for name, digits, of_ratio in (("env_steps_per_s", 0, 1), ("cpu_s_per_million_steps", 1, 2))
        ]
        met = ratios_of(document["cases"], units)[0] >= LEAST_PACE[units]
        goal = f"{LEAST_PACE[units]:g}" if met else f"**{LEAST_PACE[units]:g}**"
        rows.append(f"| {units}x{units} | {goal} | {' | '.join(cells)} |")
    names = "; ".join(TITLES[system].strip("*") for system in systems)
    rounds = min(len(case["rounds"]) for case in document["cases"])
    return "\n".join(
        [
            f"Systems: {names}. In brackets is Penstock's number over the peer's, and in bold a goal for the ratio to"
            " the fastest peer that was missed:",
            "",
            "| layers | goal | steps/s | CPU seconds per million steps |",
            "|---|---|---|---|",
            *rows,
            "",
            f"{_source(document)} {_count(rounds, 'round')} ([result file](../results/wide_layers.json)).",
        ]
    )


def _beside_ours(case: Case | None, ours: Case | None, name: str, digits: int, of_ratio: int) -> str:
    """Returns a number of a system, and the ratio of Penstock's to it."""
    if case is None or not case["rounds"]:
        return "" if case is None else "failed"
    ratio = f" ({ours[name] / case[name]:.{of_ratio}f})" if ours and ours["rounds"] and case is not ours else ""
    return f"{case[name]:,.{digits}f}{ratio}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def as_people_run(document: Document) -> str:
    """Returns the seconds to the threshold of each system with its own settings, one column per task."""
    cases = {(case["system"], case["env_id"]): case for case in document["as_people_run"]}
    tasks, systems = (dict.fromkeys(place[index] for place in cases) for index in (1, 0))
    solved = [system for system in systems if any(cases[place]["wall_s"] for place in cases if place[0] == system)]
    rows = [
        f"| {TITLES[system]} | {' | '.join(_reached(cases.get((system, task))) for task in tasks)} |"
        for system in solved
    ]
    others = [case for case in cases.values() if case["system"] not in solved]
    if others:
        observed = [f"{of([case['observed_s'] for case in others]):.0f}" for of in (min, max)]
        names = "; ".join(TITLES[system] for system in systems if system not in solved)
        rows += ["", f"No task was solved within the {observed[0]} to {observed[1]} s of observation by: {names}."]
    return "\n".join(
        [
            _sentence(document["settings"]["as_people_run"]),
            "Seconds, CPU seconds and environment steps, medians over the seeds:",
            "",
            f"| system | {' | '.join(tasks)} |",
            f"|---|{'---|' * len(tasks)}",
            *rows,
        ]
    )


def _reached(case: Case | None) -> str:
    if case is None:
        return ""
    if not case["rounds"]:
        return "failed"
    if case["wall_s"] is None:
        return f"not within {case['observed_s']:.0f} s"
    return f"{case['wall_s']:.1f} s, {case['cpu_s']:.1f} CPU s, {case['env_steps'] / 1e3:,.0f}k"


def data_path(document: Document) -> str:
    """Returns the share of the data path between actor and learner in the CPU time."""
    suffix = "_path_cpu_s_per_million"
    rows = []
    for case in document["data_path"]:
        if case["system"] != "penstock" or not case["rounds"]:
            continue
        parts = {name.removesuffix(suffix): value for name, value in case.items() if name.endswith(suffix)}
        largest = sorted(parts.items(), key=lambda part: -part[1])
        shown = ", ".join(f"{name} {value:.2f}" for name, value in largest)
        rows.append(f"| {case['env_id']} | {case['path_share']:.1%} | {shown} |")
    heading = ["| task | share of the path | CPU seconds per million steps, by activity |", "|---|---|---|"]
    return "\n".join([*heading, *rows])


def goals(document: Document) -> str:
    """Returns the goals and what was measured; undecided where other programs have lengthened the runs."""
    quiet, found = is_quiet(document), dict[tuple[str, str], dict[str, list[str]]]()
    for goal in loop_results.goals({name: document[name] for name in loop_results.NAMES}):
        outcome = _outcome(goal, decided=quiet or "CPU time" in goal.name)
        task = found.setdefault((goal.name, _bound(goal)), {}).setdefault(goal.env_id, [])
        task.append(f"{outcome} ({goal.minibatch:,})" if goal.minibatch else outcome)
    rows = []
    for (name, bound), of_tasks in found.items():
        measured = "; ".join(f"{env_id} {', '.join(outcomes)}" for env_id, outcomes in of_tasks.items())
        rows.append(f"| {name} | {bound} | {measured} |")
    heading = "| goal | bound | measured by task (and rows of a minibatch); in bold, a missed goal |"
    return "\n".join([heading, "|---|---|---|", *rows])


def is_quiet(document: Document) -> bool:
    """Returns whether no other programs ran beside the runs, as far as their load averages tell."""
    loads = [run.get("load") for run in document["runs"]]
    return all(load is not None and load <= MOST_LOAD for load in loads)


def _bound(goal: Goal) -> str:
    return f"{'at least' if goal.at_least else 'at most'} {goal.bound:g}"


def _outcome(goal: Goal, *, decided: bool) -> str:
    if goal.measured is None:
        return "no peer reached the threshold"
    if not decided:
        return f"{goal.measured:.2f} (undecided)"
    return f"{goal.measured:.2f}" if goal.met else f"**{goal.measured:.2f}**"


def origin(document: Document) -> str:
    """Returns the machine, the commit, the date and the number of rounds, as a sentence."""
    rounds = max((case["rounds"] for case in document["like_for_like"]), default=0)
    seeds = [case["rounds"] for case in document["as_people_run"]] or [0]
    of_seeds = f"{min(seeds)} to {_count(max(seeds), 'seed')}" if min(seeds) < max(seeds) else _count(seeds[0], "seed")
    failed = sum(case["failed"] for name in ("like_for_like", "as_people_run", "data_path") for case in document[name])
    loads = [run["load"] for run in document["runs"] if run.get("load") is not None]
    load = f"The highest load average before a run was {f'{max(loads):.1f}' if loads else 'unknown'}"
    if not is_quiet(document):
        load += (
            f"; above {MOST_LOAD:g}, other programs took part of the two cores, and only the CPU times can be trusted"
        )
    return (
        f"{_source(document)} {_count(rounds, 'round')} like for like and of {of_seeds} as people run"
        f" them; {failed} runs failed ([result file](../results/loop.json)).\n{load}."
    )


def _place(document: Document) -> str:
    source = document.get("provenance", document)
    return f"Measured on {source['machine']}, at commit `{_short(source['commit'])}, {source['date'][:10]}"


def _short(commit: str) -> str:
    digest, changes, _ = commit.partition("+changes")
    return f"{digest[:12]}` with local changes" if changes else f"{digest[:12]}`"


def _source(document: Document) -> str:
    return f"{_place(document)}: medians of"


def many_actors(document: Document) -> str:
    """Returns what the same number of actors cost on one and more hosts."""
    return f"{many_actors_tables.scale(document)}\n\n{_place(document)} ([result file](../results/many_actors.json))."


def emulators(document: Document) -> str:
    """Returns the pace and the memory of emulators in the worker processes of three libraries."""
    found = {(each["system"], each["emulators"]): each for each in document["readings"]}
    systems = list(dict.fromkeys(system for system, _ in found))
    rows = [
        f"| {count} | "
        + " | ".join(f"{found[system, count]['steps_per_s']:,.0f}" for system in systems)
        + " | "
        + " | ".join(
            f"{(found[system, count]['own_bytes'] + found[system, count]['children_bytes']) / 2**20:,.0f}"
            for system in systems
        )
        + " |"
        for count in dict.fromkeys(count for _, count in found)
    ]
    return "\n".join(
        [
            f"| emulators | {' | '.join(f'{each}, steps/s' for each in systems)} |"
            f" {' | '.join(f'{each}, MiB' for each in systems)} |",
            f"|---|{'---|' * 2 * len(systems)}",
            *rows,
            "",
            f"{_source(document)} {_count(document['rounds'], 'round')} in turn, on {document['cores']} cores"
            " ([result file](../results/emulators.json)).",
        ]
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def claims(document: Document) -> str:
    """Returns the sentence about speed, with the range of ratios like for like; empty before `LEAST_ROUNDS`."""
    ratios, costs = [], []
    rounds = min((case["rounds"] for case in document["like_for_like"]), default=0)
    if rounds < LEAST_ROUNDS or not is_quiet(document):
        return ""
    cases = [case for case in document["like_for_like"] if case["rounds"]]
    for ours in (case for case in cases if case["system"] == "penstock"):
        for case in cases:
            if case is not ours and (case["env_id"], case["minibatch"]) == (ours["env_id"], ours["minibatch"]):
                ratios.append(ours["env_steps_per_s"] / case["env_steps_per_s"])
                costs.append(ours["cpu_s_per_million_steps"] / case["cpu_s_per_million_steps"])
    return (
        "- **Pace.** On the same work and the same two cores, Penstock takes"
        f" {min(ratios):.1f} to {max(ratios):.1f} times as many environment steps per second as five other libraries,"
        f" with {min(costs):.2f} to {max(costs):.2f} of their CPU time per step"
        " ([tables](BENCHMARKS.md#the-whole-loop), [runs](../results/loop.json))."
    )


def installation(document: Document) -> str:
    """Returns README's sentence about the size of the installation."""
    return (
        f"The installation takes {document['size_mb'] / 1e3:.1f} GB, and took"
        f" {document['seconds_with_downloads'] / 60.0:.0f} minutes with all downloads"
        " ([result file](results/development.json))."
    )


def rl_zoo_claim(document: Document) -> str:
    """Returns the sentence about returns at equal environment steps."""
    return zoo_report.claim(zoo_report.comparisons(zoo_report.runs_of(document)))


def rl_zoo(document: Document) -> str:
    """Returns the tables of the comparison with rl-zoo's PPO."""
    return zoo_report.table(zoo_report.comparisons(zoo_report.runs_of(document)))


def actor_process(document: Document) -> str:
    """Returns memory and start of an actor, and of runs with several."""
    rows = [
        f"| {name} | {statistics.median(each['megabytes']):.0f}, {statistics.median(each['seconds']):.1f} |"
        for name, each in document.items()
        if ", " in name
    ]
    runs = [
        f"| {name.partition(' ')[0]} | {each['megabytes']:.0f} | {each['seconds']:.1f} |"
        for name, each in document.items()
        if name.endswith(" actors")
    ]
    return "\n".join(
        [
            "| preset, `actor.inference` | MB, seconds to the first step |",
            "|---|---|",
            *rows,
            "",
            "| actors of a run | MB of all processes | seconds until all have joined |",
            "|---|---|---|",
            *runs,
            "",
            f"{_place(document)} ([result file](../results/actor_process.json)).",
        ]
    )


def actor_steps(document: Document) -> str:
    """Returns the processor time of an environment step with both libraries."""
    readings = {
        (each["preset"], each["environments"], each["library"]): each["median"] for each in document["readings"]
    }
    rows = [
        f"| `{preset}` | {environments} | {readings[preset, environments, 'numpy']:.1f} |"
        f" {readings[preset, environments, 'torch']:.1f} |"
        for preset, environments in dict.fromkeys(key[:2] for key in readings)
    ]
    origin = f"{_place(document)} ([result file](../results/actor_steps.json))."
    return "\n".join(["| preset | environments | NumPy | torch |", "|---|---|---|---|", *rows, "", origin])


def environment_workers(document: Document) -> str:
    """Returns the time of an environment step in one process and in workers."""
    found = {(each["task"], each["workers"]): each for each in document["readings"]}
    numbers = sorted({workers for _, workers in found})
    rows = [
        f"| {task}, {label} | {' | '.join(f'{found[task, workers][name]:,.0f}' for workers in numbers)} |"
        for task in dict.fromkeys(task for task, _ in found)
        for name, label in (("elapsed_us", "elapsed"), ("cpu_us", "CPU"))
    ]
    return "\n".join(
        [
            f"| us per environment step | in the actor | {' | '.join(f'{each} workers' for each in numbers[1:])} |",
            f"|---|{'---|' * len(numbers)}",
            *rows,
            "",
            f"{_source(document)} {_count(document['rounds'], 'round')} in turn, with {document['environments']}"
            " environments ([result file](../results/environment_workers.json)).",
        ]
    )


def degrees(document: Document) -> str:
    """Returns the seconds to the threshold by off-policy degree."""
    return (
        f"{degrees_table.table(document)}\n\nMedian seconds and environment steps to the threshold, on two cores."
        f" {_place(document)} ([result file](../results/degrees.json))."
    )


def demonstrations(document: Document) -> str:
    """Returns the returns of runs with and without demonstrations in the course of training."""
    curves = document["curves"]
    marks = [share * document["steps"] // 10 for share in (1, 2, 5, 10)]
    rows = []
    for task, row in dict.fromkeys((each["task"], each["demonstrations"]) for each in curves):
        found = [each for each in curves if (each["task"], each["demonstrations"]) == (task, row)]
        cells = []
        for mark in marks:
            returns = [np.interp(mark, each["env_steps"], each["returns"]) for each in found]
            cells.append(f"{statistics.median(returns):.0f} ({min(returns):.0f})")
        rows.append(f"| {task} | {row} | {' | '.join(cells)} |")
    return "\n".join(
        [
            f"| task | demonstrations | {' | '.join(f'{mark:,} steps' for mark in marks)} |",
            f"|---|---|{'---|' * len(marks)}",
            *rows,
            "",
            f"Mean return of evaluations: median over {document['seeds']} seeds (worst seed). The file has"
            f" {document['demonstrated_steps']:,} steps, and the other settings are the defaults. {_place(document)}"
            " ([result file](../results/demonstrations.json)).",
        ]
    )


def placed(result: str, table: Callable[[Document], str]) -> Callable[[Document], str]:
    """Returns a table's function that also tells where a result was measured, with the name of its file."""
    return lambda document: f"{table(document)} {_place(document)} ([result file](../results/{result}))."


def slow_environment(document: Document) -> str:
    """Returns the rate of collectors that await a slow environment or leave it out."""
    reference = document["readings"][0]["steps_per_s"]
    rows = [
        f"| {each['form']} | {each['steps_per_s']:,.0f} | {each['steps_per_s'] / reference:.2f} |"
        for each in document["readings"]
    ]
    origin = (
        f"{_source(document)} {_count(document['rounds'], 'round')} in turn; a step takes"
        f" {document['step_s'] * 1e3:g} ms, and {document['slower']} times that in the slow environment"
        " ([result file](../results/slow_environment.json))."
    )
    return "\n".join(["| environments | steps/s | of seven |", "|---|---|---|", *rows, "", origin])


def environment_forms(document: Document) -> str:
    """Returns the time of an environment step, and the pace of a run, in each form."""
    origin = (
        f"{_source(document)} {_count(document['rounds'], 'round')} in turn, beside other work on the machine"
        " ([result file](../results/environment_forms.json))."
    )
    return "\n\n".join([forms_tables.steps(document), forms_tables.runs(document), origin])


def envpool_tasks(document: Document) -> str:
    """Returns how many tasks of EnvPool are accepted, and why the others are refused."""
    return f"{forms_tables.tasks(document)}\n\n{_place(document)} ([result file](../results/envpool.json))."


def gradient_steps(document: Document) -> str:
    """Returns the CPU time of training on a batch with autograd and without, for tasks, layers and minibatches."""
    # Each case is measured by `eager` and then by `auto`.
    pairs = list(zip(document["cases"][::2], document["cases"][1::2], strict=True))
    shown = [pair for pair in pairs if pair[0]["rows_of_a_minibatch"] in (256, 1024) and len(pair[0]["layers"]) == 2]
    rows = []
    for eager, auto in shown:
        layers = "x".join(map(str, eager["layers"]))
        times = [
            f"{eager[name]:.2f}, {auto[name]:.2f} ({eager[name] / auto[name]:.1f} times)"
            for name in ("gradient_step_cpu_ms", "batch_cpu_ms")
        ]
        size = f"{eager['rows_of_a_minibatch']:,}"
        step_us = auto["cpu_us_per_environment_step"]
        rows.append(f"| {eager['env_id']} | {layers} | {size} | {' | '.join(times)} | {step_us:.1f} |")
    ratios = [auto["batch_cpu_ms"] / eager["batch_cpu_ms"] for eager, auto in pairs]
    return "\n".join(
        [
            "| task | layers | rows of a minibatch | CPU ms of a gradient step: eager, direct"
            " | of a batch: eager, direct | CPU us per environment step, direct |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"Over {len(pairs)} cases of one to three layers of 32 to 1,024 units and of minibatches of 64 to 4,096"
            f" rows, a batch by `auto` takes {min(ratios):.2f} to {max(ratios):.2f} of the CPU time of `eager`.",
            "",
            f"{_source(document)} {_count(document['rounds'], 'round')}"
            " ([result file](../results/gradient_steps.json)).",
        ]
    )


def ranks(document: Document) -> str:
    """Returns what several ranks of a learner cost, compared with one rank on the same batches."""
    rows, of_one = [], {case["workload"]: case for case in document["cases"] if case["ranks"] == 1}
    for case in document["cases"]:
        if case["ranks"] == 1:
            continue
        one = of_one[case["workload"]]
        (alone,), each = one["cpu_ms"], max(case["cpu_ms"])
        cells = (
            case["workload"],
            f"{alone:,.0f}, {each:,.0f} ({each / alone:.2f} times)",
            f"{case['sum_bytes'] / 1e3:,.0f} kB, {case['sum_ms']:.1f} ms",
            f"{case['largest_difference']:.0e}, {case['difference_of_last_bits']:.0e}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    link = document["link"]
    return "\n".join(
        [
            "| policy, minibatch | CPU ms of a batch: one rank, each of two | a sum"
            " | difference of a parameter: two ranks, other last bits |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Sending a batch of {link['batch_bytes'] / 1e6:,.0f} MB to the other rank took {link['cpu_ms']:,.0f} ms of"
            " CPU time on both sides together.",
            f"{_source(document)} {_count(document['rounds'], 'round')} in turn"
            " ([result file](../results/ranks.json)).",
        ]
    )


def sum_tree(document: Document) -> str:
    """Returns how many times as fast the bare tree and the whole buffer are as cpprb's buffer."""
    rows = []
    cases = [*document["cases"], *document["whole_buffer"]]
    names = {
        "draw": "draw, bare tree",
        "update": "update, bare tree",
        "buffer draw": "draw, whole buffer",
        "buffer update": "update, whole buffer",
    }
    batches = sorted({case["batch"] for case in cases})
    for name, leaves in dict.fromkeys((case["case"], case["leaves"]) for case in cases):
        ratios = [case["ratio"] for case in cases if (case["case"], case["leaves"]) == (name, leaves)]
        rows.append(f"| {names[name]} | {leaves:,} | {' | '.join(f'{ratio:.1f}' for ratio in ratios)} |")
    return "\n".join(
        [
            f"| cpprb's time over Penstock's | leaves | {' | '.join(f'batches of {batch:,}' for batch in batches)} |",
            f"|---|---|{'---|' * len(batches)}",
            *rows,
            "",
            f"{_source(document)} {_count(document['rounds'], 'round')} ([result file](../results/sum_tree.json)).",
        ]
    )


def comparisons(document: Document) -> str:
    """Returns the false verdicts between equal settings, and the pairs of runs that a real difference takes."""
    null = {(each["kind"], each["pairs"], each["deviation"]): each["verdicts"] for each in document["null"]}
    deviations = list(dict.fromkeys(key[2] for key in null))
    rows = [
        f"| {kind} | {'at most ' if kind == 'sequential' else ''}{size} |"
        + "".join(f" {null[kind, size, each]:.1%} |" for each in deviations)
        for kind, size in dict.fromkeys(key[:2] for key in null)
    ]
    found = [
        f"| {each['deviation']:g} | {each['most']} | {each['power']:.1%} | {each['wrong']:.2%} |"
        f" {each['mean_pairs']:.1f} | {each['fixed_pairs']} | {each['mean_pairs'] / each['fixed_pairs']:.2f} |"
        for each in sorted(document["differences"], key=lambda each: (each["deviation"], each["most"]))
    ]
    return "\n".join(
        [
            "Verdicts between equal settings, by the deviation of the logarithm of a run's steps:",
            "",
            f"| comparison | pairs | {' | '.join(f'{each:g}' for each in deviations)} |",
            f"|---|---|{'---|' * len(deviations)}",
            *rows,
            "",
            f"Sequential comparisons of settings with a true ratio of {document['ratio']:g}, and the fixed number of"
            " pairs that finds it as often:",
            "",
            "| deviation | most pairs | true verdicts | wrong direction | mean pairs | fixed pairs | share of runs |",
            "|---|---|---|---|---|---|---|",
            *found,
            "",
            f"{_place(document)}: {document['comparisons']:,} simulated comparisons in each case"
            " ([result file](../results/compare.json)).",
        ]
    )


def gallery(document: Document) -> str:
    """Returns the presets with their films, returns, steps and wall times."""
    rows = []
    for row in document["rows"]:
        threshold, reached = row["threshold"], row["env_steps_to_threshold"]
        film = f"images/gallery/{row['preset']}.webp"
        cells = (
            f"![{row['env_id']}]({film})" if (ROOT / "docs" / film).exists() else "",
            f"{row['env_id']}<br>`{row['command']}`",
            f"{row['return_mean']:,.4g} ± {row['return_std']:,.2g}",
            f"{threshold:,g} after {reached:,}" if reached else f"{threshold:,g} not reached",
            f"{row['env_steps']:,}",
            f"{row['wall_s'] / 60.0:,.1f}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    commits = dict.fromkeys(_short(row["provenance"]["commit"]) for row in document["rows"])
    return "\n".join(
        [
            "| film | environment, command | return | threshold | environment steps | minutes |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"Measured on {document['provenance']['machine']}, at commit `{', `'.join(commits)},"
            f" {document['provenance']['date'][:10]} ([result file](../results/gallery.json)).",
        ]
    )


def replay(result: str) -> Callable[[Document], str]:
    """Returns the function that shows a result of `make bench-replay`, with the name of its file."""

    def table(document: Document) -> str:
        return "\n".join(
            [
                "| case | segment | rate over the peer's | goal | CPU s per million segments, ours and the peer's"
                " | kB on the wire, ours and the peer's |",
                "|---|---|---|---|---|---|",
                *(_replay_row(case) for case in document["cases"]),
                "",
                f"{_source(document)} {_count(document['rounds'], 'round')} of {document['seconds']:g} s"
                f" ([result file](../results/{result})).",
            ]
        )

    return table


def _replay_row(case: Case) -> str:
    costs = [case["penstock_cpu_s_per_million"], case["peer_cpu_s_per_million"]]
    wire = [case["penstock_wire_bytes"], case["peer_wire_bytes"]]
    cells = (
        case["case"],
        f"`{case['segment']}`",
        f"{case['ratio']:.1f}",
        f"{case['goal']:g}, {'met' if case['ratio'] >= case['goal'] else '**missed**'}",
        ", ".join(f"{cost:,.3g}" if cost < 1_000 else f"{cost:,.0f}" for cost in costs),
        "" if "same host" in case["case"] else ", ".join(f"{size / 1e3:,.1f}" for size in wire),
    )
    return f"| {' | '.join(cells)} |"


def insertion(document: Document) -> str:
    """Returns the rates of insertion by writer processes, beside the peer's."""
    return (
        f"{insertion_tables.insertion(document)}\n\n{_source(document)} {_count(document['rounds'], 'round')} of"
        f" {document['seconds']:g} s ([result file](../results/insertion.json))."
    )


def distant_actors(document: Document) -> str:
    """Returns the pace of distant actors compared with near ones, and what the link permits."""
    cases = document["cases"]
    rows = [_distant_row(case, _of_degree_0(cases, case["unroll_length"]), document) for case in cases]
    return "\n".join(
        [
            "| steps of a window | degree | steps/s: near, distant | ratio | limit"
            " | Mbit/s: from the actors, to them |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"{_source(document)} {_count(document['rounds'], 'round')} of {document['seconds']:g} s,"
            f" with a load average of {document['load']:.1f} before the first"
            " ([result file](../results/distant_actors.json)).",
        ]
    )


def security(document: Document) -> str:
    """Returns what certificates and Unix sockets cost whole runs."""
    rows = []
    for case in document["comparisons"]:
        names = (case["baseline"], case["compared"])
        paces = ", ".join(f"{case['medians'][name]['steps_per_s']:,.0f}" for name in names)
        costs = ", ".join(f"{_cpu_s(case['medians'][name]):,.0f}" for name in names)
        cells = (case["preset"], ", ".join(names), paces, f"{case['steps_per_s_ratio']:.2f}", costs)
        rows.append(f"| {' | '.join(cells)} | {case['cpu_ratio']:.2f} |")
    return "\n".join(
        [
            "| preset | ways | steps/s | second over first | CPU s per million steps | second over first |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"{_source(document)} {_count(document['rounds'], 'round')} of {document['seconds']:g} s with"
            f" {document['actors']} actors, with a load average of {document['load']:.1f} before the first"
            " ([result file](../results/security.json)).",
        ]
    )


def _cpu_s(cost: Case) -> float:
    return float(sum(cost[f"{service}_cpu_s"] for service in ("replay", "learner", "actors")))


def _of_degree_0(cases: Sequence[Case], unroll_length: int) -> Case:
    return next(case for case in cases if (case["unroll_length"], case["degree"]) == (unroll_length, 0))


def _distant_row(case: Case, of_degree_0: Case, document: Document) -> str:
    near, distant = case["near"], case["distant"]
    # At degree 0 without delay, nothing overlaps: a batch takes the collection of its windows and the training.
    undelayed_s = 1.0 / of_degree_0["near"]["batches_per_s"]
    weights_s = distant["down_mbit_per_s"] / distant["batches_per_s"] / document["mbit_per_s"]
    cycle_s = document["round_trip_s"] + weights_s + undelayed_s
    limit = min(1.0, (case["degree"] + 1) / cycle_s / near["batches_per_s"])
    cells = (
        str(case["unroll_length"]),
        str(case["degree"]),
        f"{near['steps_per_s']:,.0f}, {distant['steps_per_s']:,.0f}",
        f"{distant['steps_per_s'] / near['steps_per_s']:.2f}",
        f"{limit:.2f}",
        f"{distant['up_mbit_per_s']:.1f}, {distant['down_mbit_per_s']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


SPEED, SCALE, RL_ZOO = "docs/BENCHMARKS.md", "docs/benchmarks-scale.md", "docs/results-rl-zoo.md"

PARTS: Mapping[str, tuple[str, str, Callable[[Document], str]]] = {
    "replay of frames": (SPEED, "replay_frames.json", replay("replay_frames.json")),
    "replay over a link": (SPEED, "replay_link.json", replay("replay_link.json")),
    "replay of vectors": (SPEED, "replay_vector.json", replay("replay_vector.json")),
    "insertion": (SPEED, "insertion.json", insertion),
    "replay of random bytes": (SPEED, "replay_pixel.json", replay("replay_pixel.json")),
    "origin of the loops": (SPEED, "loop.json", origin),
    "like for like": (SPEED, "loop.json", like_for_like),
    "wide layers": (SPEED, "wide_layers.json", wide_layers),
    "as people run them": (SPEED, "loop.json", as_people_run),
    "data path": (SPEED, "loop.json", data_path),
    "goals of the loops": (SPEED, "loop.json", goals),
    "sum tree": (SPEED, "sum_tree.json", sum_tree),
    "gradient steps": (SCALE, "gradient_steps.json", gradient_steps),
    "ranks": (SCALE, "ranks.json", ranks),
    "distant actors": (SCALE, "distant_actors.json", distant_actors),
    "many actors": (SCALE, "many_actors.json", many_actors),
    "actors over hosts": (SCALE, "many_actors.json", many_actors_tables.spread),
    "still more actors": (SCALE, "many_actors.json", many_actors_tables.larger),
    "security": (SCALE, "security.json", security),
    "learner on a GPU": (SCALE, "gpu/learner.json", gpu_tables.learner),
    "errors on a GPU": ("docs/gpu.md", "gpu/errors.json", gpu_tables.errors),
    "actor process": (SCALE, "actor_process.json", actor_process),
    "actor steps": (SCALE, "actor_steps.json", actor_steps),
    "installation": ("README.md", "development.json", installation),
    "defaults": ("docs/RESULTS.md", "zoo_tasks.json", rl_zoo_claim),
    "pace": ("docs/RESULTS.md", "loop.json", claims),
    "slow environment": ("docs/design-actors.md", "slow_environment.json", slow_environment),
    "environment forms": ("docs/envpool.md", "environment_forms.json", environment_forms),
    "tasks of EnvPool": ("docs/envpool.md", "envpool.json", envpool_tasks),
    "emulators": ("docs/emulators.md", "emulators.json", emulators),
    "environment workers": ("docs/design-actors.md", "environment_workers.json", environment_workers),
    "degrees": ("docs/policy-lag.md", "degrees.json", degrees),
    "demonstrations": ("docs/demonstrations.md", "demonstrations.json", demonstrations),
    "watching": ("docs/tracking.md", "watching.json", placed("watching.json", comparing_tables.watching)),
    "tuning": ("docs/tuning.md", "tuning.json", placed("tuning.json", comparing_tables.tuning)),
    "intrinsic rewards": (
        "docs/change-the-algorithm.md",
        "intrinsic_rewards.json",
        placed("intrinsic_rewards.json", comparing_tables.intrinsic_rewards),
    ),
    "centralised critic": (
        "docs/suites.md",
        "centralised_critic.json",
        placed("centralised_critic.json", comparing_tables.centralised_critic),
    ),
    "shared_policy": (
        "docs/variants.md",
        "shared_policy.json",
        placed("shared_policy.json", shared_policy_table.table),
    ),
    "gallery": ("docs/gallery.md", "gallery.json", gallery),
    "comparisons": ("docs/comparing.md", "compare.json", comparisons),
    "rl-zoo": (RL_ZOO, "zoo_tasks.json", rl_zoo),
}
"""Page, result file and text of each generated part, by its name. A part of README.md is empty if it may not quote the
file."""


def with_parts(page: str, text: str) -> str:
    """Returns the text of a page with the current parts between their marks.

    Raises:
        ValueError: A mark is missing.
        RuntimeError: The page is README.md, and the checkout lacks the history.
    """
    index = read_index()
    for name, (on_page, result, part) in PARTS.items():
        if on_page == page:
            quoted = page != "README.md" or is_quotable(index, result)
            text = _with_part(page, text, name, part(index.results[result].document()) if quoted else "")
    if page == "README.md":
        text = _with_part(page, text, "charts", charts.lines(index))
    if page == PAGE_OF_CHANGES:
        text = _with_part(page, text, "changes", numbered_changes(index))
    if page in _with_origins(index):
        text = _with_part(page, text, "origins", origins(index, page))
    return text


def _with_part(page: str, text: str, name: str, content: str) -> str:
    begin, end = f"<!-- generated by benchmarks/tables.py: {name} -->", f"<!-- end of {name} -->"
    if begin not in text or end not in text:
        raise ValueError(f"{page} has no marks for {name!r}: add {begin} and {end}")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}\n{content}\n{end}{after}" if content else f"{before}{begin}\n{end}{after}"


def _with_origins(index: Index) -> list[str]:
    """Returns the pages that state the origins of files."""
    return list(dict.fromkeys(result.pages[0] for result in index.results.values() if result.in_origins))


def pages() -> list[str]:
    """Returns the pages that have generated parts."""
    return list(dict.fromkeys([*(page for page, _, _ in PARTS.values()), *_with_origins(read_index())]))


def place_of(file: Path) -> Path:
    """Returns the place of a new result. Raises `SystemExit` if the index does not list it."""
    names = [name for name in read_index().results if name in (file.name, f"{file.parent.name}/{file.name}")]
    if not names:
        sys.exit(f"results/index.toml does not list {file.name}: add it with its command, pages and code")
    return RESULTS / names[0]


def main() -> None:
    """Writes the pages and the charts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adopt", nargs="*", type=Path, default=[], help="new result files to copy to results/")
    for file in parser.parse_args().adopt:
        shutil.copy(file, place_of(file))
    for page in pages():
        path = ROOT / page
        path.write_text(with_parts(page, path.read_text()))
    for name, picture in charts.pictures(read_index()).items():
        (IMAGES / name).write_text(picture)


if __name__ == "__main__":
    main()
