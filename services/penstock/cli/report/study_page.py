"""The page about a study: its trials with their settings, and the evaluations of the best ones."""

from collections.abc import Sequence
from html import escape

import numpy as np

from penstock.cli.report.charts import Line, chart, line_of
from penstock.cli.report.page import document
from penstock.cli.setting_options import shown
from penstock.comparing.study import Study, Trial
from penstock.errors import ConfigurationError
from penstock.local.learning_curves import read_curve
from penstock.machine.files import write_atomically
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import return_text

_MOST_POINTS = 200
_DRAWN = 12
"""Most trials whose evaluations are drawn: the base, and the best of the others."""


def write_study(study: Study) -> None:
    """Writes the page about a study. Raises `ConfigurationError` if it can't be written."""
    try:
        write_atomically(study.page, study_page(study).encode(errors="replace"))
    except OSError as error:
        raise ConfigurationError(f"can't write {study.page}: {in_words(error, study.page)}") from None


def study_page(study: Study) -> str:
    """Returns the page about a study, as an HTML document."""
    trials = [each for each in study.trials() if each.state != "refused"]
    best = max((each for each in trials if each.state == "complete"), key=lambda each: each.rank, default=None)
    heading = f"Study of {study.base.environment.short_name}"
    counts = {
        state: sum(each.state == state for each in trials) for state in ("complete", "pruned", "failed", "active")
    }
    about = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no trials yet"
    verdict = "no trial is complete" if best is None else f"best: {_name(best)} with a return of {_value(best)}"
    body = [
        f'<header><h1>{escape(heading)}</h1><p class="verdict">{escape(verdict)}</p>',
        f'<p class="about">{escape(f"{study.folder.name} · {about}")}</p></header>',
        "<h2>Returns</h2>",
        _progress(trials),
        _curves(study, trials, best),
        f"<h2>Trials</h2>{_table(study, trials)}",
    ]
    if best is not None:
        command = f"penstock train --preset none --config {study.best_settings}"
        body.append(f"<p>All settings of the best trial are in a file: <code>{escape(command)}</code></p>")
    return document(f"{heading}: {verdict}", "".join(body))


def _progress(trials: Sequence[Trial]) -> str:
    ended = [each for each in trials if each.value is not None]
    if not ended:
        return "<p class=about>No trial is complete.</p>"
    numbers = np.array([each.number for each in ended], np.float64)
    values = np.array([each.value for each in ended], np.float64)
    points = np.stack([numbers, values], 1)
    best = np.stack([numbers, np.maximum.accumulate(values)], 1)
    lines = [
        line_of("return", [points], _MOST_POINTS, colour=5, faint=True),
        line_of("best so far", [best], _MOST_POINTS),
    ]
    return chart("return of complete trials, over their numbers", [each for each in lines if each], large=True)


def _curves(study: Study, trials: Sequence[Trial], best: Trial | None) -> str:
    """Returns the evaluations of trials during the runs of all their seeds, the best one above the others."""
    complete = sorted((each for each in trials if each.state == "complete" and each.number), key=lambda each: each.rank)
    base = [each for each in trials if each.number == 0]
    lines: list[Line | None] = []
    for each in [*base, *complete[-_DRAWN + 1 :]]:
        is_best = best is not None and each.number == best.number
        runs = [RunFolder(each.folder / f"seed-{seed}") for seed in study.seeds]
        curves = [
            read_curve(run, details=()).evaluation for run in runs if run.config.exists() and run.metrics.exists()
        ]
        colour = 0 if is_best else 1 if each.number == 0 else 5
        lines.append(line_of(_name(each), curves, _MOST_POINTS, colour=colour, faint=colour == 5))
    known = [line for line in lines if line is not None]
    threshold = study.base.evaluation.threshold
    legend = [line for line in known if not line.faint]
    return chart("return of evaluations, over environment steps", known, level=threshold, large=True, legend=legend)


def _table(study: Study, trials: Sequence[Trial]) -> str:
    names = list(study.space)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("trial", "state", "return", *names))
    ranked = sorted(trials, key=lambda each: each.rank if each.state == "complete" else (float("-inf"), -each.number))
    rows = []
    for each in reversed(ranked):
        values = study.settings_of(each).model_dump(mode="json")
        cells = [
            each.state if each.state == "complete" or not each.reason else f"{each.state}: {each.reason}",
            _value(each),
            *(value_text(values[section][key]) for section, _, key in (name.partition(".") for name in names)),
        ]
        number = f"{each.number}" if each.number else "0, the start"
        rows.append(f"<tr><th>{number}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    return f'<div class=wide><table class="settings"><thead><tr>{head}</tr></thead>{"".join(rows)}</table></div>'


def value_text(value: object) -> str:
    """Returns the value of a setting with four digits, if it is not whole."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def _name(trial: Trial) -> str:
    return f"trial {trial.number}" if trial.number else "trial 0, the settings to start from"


def _value(trial: Trial) -> str:
    return "-" if trial.value is None else return_text(trial.value)
