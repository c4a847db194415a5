"""`penstock compare`: trains two settings with the same seeds, and reports their differences and a verdict."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rich.console import Console

from penstock.cli.named import settings_named
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.screen.lines import aligned, show
from penstock.cli.shown_runs import (
    add_options,
    chosen_folder,
    chosen_processes,
    chosen_seeds,
    interval,
    print_commands,
    runs_of,
    steps,
    train_shown,
)
from penstock.comparing.comparison import Result, compare, described, differences, write_table
from penstock.comparing.folders import begin
from penstock.comparing.outcomes import Outcome, read_outcome
from penstock.comparing.statistics import ERROR, FIRST_LOOK
from penstock.config import Config, parse_toml
from penstock.config.recorded import OF_ONE_RUN, texts, texts_of
from penstock.errors import ConfigurationError
from penstock.runs.known import known_runs

_LEAST_SEEDS = 3
_SHOWN_DIFFERENCES = 8
_ROOT = "compare"


@dataclass(frozen=True, slots=True)
class _Side:
    """Settings to compare: a configuration to train, or runs that have ended, by seed; and the text of each setting."""

    name: str
    config: Config | None
    runs: dict[int, Path]
    texts: dict[str, str]


class _Design(TypedDict):
    seeds: list[int]
    sequential: bool
    runs: dict[str, list[str]]


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(
        prog="penstock compare", description="Train two settings with the same seeds, and say which is better."
    )
    parser.add_argument("a", metavar="A", help="settings: a TOML file, a preset, or a folder of runs that have ended")
    parser.add_argument("b", metavar="B", help="settings to compare with A, given as A")
    add_options(parser, seeds=5, names="default: from A and B; below compare/")
    parser.add_argument(
        "--sequential", action="store_true", help="stop as soon as the verdict is certain enough, at most at --seeds"
    )
    named = parser.parse_args(list(arguments))
    if named.print and named.sequential:
        raise ConfigurationError("--sequential decides after each run whether the next one is needed; omit --print")
    seeds: Sequence[int] = chosen_seeds(
        named.first_seed, named.seeds, FIRST_LOOK + 1 if named.sequential else _LEAST_SEEDS
    )
    sides = {"a": _side(named.a), "b": _side(named.b)}
    seeds = _common_seeds(sides, seeds)
    folder = chosen_folder(_ROOT, named.name, "-".join(each.name for each in sides.values()))
    settings = {label: each.config for label, each in sides.items() if each.config is not None}
    processes = chosen_processes(named.processes, list(settings.values())) if settings else 1
    design: _Design = {
        "seeds": list(seeds),
        "sequential": named.sequential,
        "runs": {label: [str(run) for run in each.runs.values()] for label, each in sides.items() if each.runs},
    }
    changed = differences(sides["a"].texts, sides["b"].texts)
    begin(folder, "compare", design, settings)
    runs = runs_of(folder, settings, seeds) if settings else []
    if named.print:
        print_commands(runs)
        return 0
    comparison = _Comparison(folder, sides, design, changed)
    console = Console(highlight=False)
    show(console, *comparison.introduction(processes))
    if runs:
        train_shown(
            console,
            runs,
            processes,
            goes_on=comparison.goes_on,
            arguments=["compare", *arguments],
        )
    result = comparison.result()
    assert result is not None
    show(console, "", *comparison.report(result))
    return 0


class _Comparison:
    """A comparison in its folder, which is analysed after each end of a run."""

    def __init__(
        self, folder: Path, sides: dict[str, _Side], design: _Design, changed: dict[str, tuple[str, str]]
    ) -> None:
        self._folder, self._sides, self._design, self._differences = folder, sides, design, changed
        self._seeds, self._sequential = design["seeds"], design["sequential"]
        self._threshold = sides["a"].texts["evaluation.threshold"] != "none"
        self._known: dict[Path, Outcome] = {}

    def introduction(self, processes: int) -> list[str]:
        """Returns the lines before the first run."""
        shown = [f"{name} {one} -> {other}" for name, (one, other) in self._differences.items()]
        more = [f"and {len(shown) - _SHOWN_DIFFERENCES} more"] if len(shown) > _SHOWN_DIFFERENCES else []
        kind = "at most " if self._sequential else ""
        changed = ", ".join([*shown[:_SHOWN_DIFFERENCES], *more])
        return [
            f"A: {self._sides['a'].name}, B: {self._sides['b'].name}; {changed}",
            f"{kind}{len(self._seeds)} seeds of each, {processes} at the same time, in {self._folder}",
        ]

    def goes_on(self) -> bool:
        """Writes the table, and returns whether further runs are needed."""
        result = self.result()
        return not (self._sequential and result is not None and result.decided)

    def result(self) -> Result | None:
        """Returns what the pairs show that have ended, and writes it to the table; None: there are too few.

        Pairs are taken in the order of the plan up to the first one with a missing run, because the order in which
        runs end depends on their outcomes.
        """
        outcomes = {label: [self._outcome(label, seed) for seed in self._seeds] for label in self._sides}
        pairs = list(itertools.takewhile(lambda pair: None not in pair, zip(outcomes["a"], outcomes["b"], strict=True)))
        a, b = ([each for pair in pairs if (each := pair[side]) is not None] for side in (0, 1))
        most = len(self._seeds) if self._sequential else None
        result = compare(a, b, threshold=self._threshold, most=most) if pairs else None
        ended = {label: [each for each in found if each is not None] for label, found in outcomes.items()}
        write_table(self._folder / "compare.json", self._design, self._differences, ended, result)
        return result

    def _outcome(self, label: str, seed: int) -> Outcome | None:
        run = self._sides[label].runs.get(seed, self._folder / label / f"seed-{seed}")
        if run not in self._known and (ended := read_outcome(run)):
            self._known[run] = ended
        return self._known.get(run)

    def report(self, result: Result) -> list[str]:
        """Returns the lines of the report."""
        ways = [(f"A: {self._sides['a'].name}", result.a), (f"B: {self._sides['b'].name}", result.b)]
        rows = [["", *(name for name, _ in ways)]]
        rows.append(["final return", *(interval(means.final_return) for _, means in ways)])
        if self._threshold:
            rows.append(["steps to threshold", *(steps(means) for _, means in ways)])
        level = f"{1 - ERROR:.0%}"
        differing = [["B over A (ratio) or B - A (difference)", f"{level} interval"]]
        differing += [[row.name, described(row)] for row in result.rows]
        looks = f" over all {len(self._seeds)} looks" if self._sequential else ""
        error = (
            f"Between equal settings, a verdict has a probability of {ERROR:.0%}{looks}; {result.pairs} pairs of runs."
        )
        return [*aligned(rows), "", *aligned(differing), "", result.verdict, error]


def _side(text: str) -> _Side:
    """Returns the settings that an operand names. Raises `ConfigurationError` if it names none."""
    path = Path(text)
    if not path.is_dir():
        config = settings_named(text).repeatable()
        return _Side(path.stem, config, {}, texts_of(parse_toml(config.to_toml())))
    folders = known_runs(path)
    if not folders:
        raise ConfigurationError(f"{path} contains no runs; name a folder with a run folder for each seed")
    runs: dict[int, Path] = {}
    first = texts(folders[0].config)
    for folder in folders:
        own = texts(folder.config)
        changed = [name for name in first if name not in OF_ONE_RUN and own.get(name) != first[name]]
        if changed:
            raise ConfigurationError(
                f"the runs in {path} differ in {', '.join(changed)}; name a folder of runs with equal settings"
            )
        if read_outcome(folder.root) is None:
            raise ConfigurationError(f"the run in {folder.root} has not ended; resume it, or remove it")
        seed = int(own["run.seed"])
        if seed in runs:
            raise ConfigurationError(f"{path} has two runs with seed {seed}; remove one")
        runs[seed] = folder.root
    return _Side(path.resolve().name, None, dict(sorted(runs.items())), first)


def _common_seeds(sides: dict[str, _Side], seeds: Sequence[int]) -> Sequence[int]:
    """Returns the seeds of the pairs: seeds that existing runs have in common, or else the given seeds."""
    given = [list(each.runs) for each in sides.values() if each.runs]
    if not given:
        return seeds
    common = [seed for seed in given[0] if all(seed in each for each in given)][: len(seeds)]
    if len(common) < len(seeds):
        raise ConfigurationError(
            f"there are runs with {len(common)} common seeds, fewer than --seeds {len(seeds)}; train the others, or"
            " give a smaller number"
        )
    return common
