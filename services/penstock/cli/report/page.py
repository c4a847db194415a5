"""The report as one HTML page: it names no other file and no address, has no script, and escapes every text.

The page states that browsers may load and run nothing, so that not even a text that were not escaped could.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from penstock.cli.report.charts import Line, chart, line_of
from penstock.cli.report.contents import PANELS, Panel, ReportedRun, read_runs
from penstock.cli.report.films import films
from penstock.cli.screen.replay_figures import replay_figures
from penstock.config.recorded import texts_of
from penstock.errors import ConfigurationError, PenstockError
from penstock.local.learning_curves import Curve, gather_by_settings
from penstock.machine.files import write_atomically
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import INFO_METRIC, return_text

_MOST_POINTS, _MOST_SMALL = 400, 200
"""Most points of a line across the page, and of one in a small chart."""

_MOST_IN_ALL = 800
"""Most points of all groups of runs together in one chart, which bounds the size of a page with many runs."""

_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'; media-src data:"
"""What browsers may load."""

_LEAST_POINTS = 10
_COLOURS = 6
_DASHES = 3
_MOST_TEXT = 300
"""Characters of the value of a setting that are shown."""


def write(folders: Sequence[RunFolder], output: Path) -> None:
    """Writes the report of runs into a private file.

    Raises `ConfigurationError` if a run or the file can't be used.
    """
    text = page(read_runs(folders), with_films=True)
    try:
        write_atomically(output, text.encode(errors="replace"))
    except OSError as error:
        reason = in_words(error, output, "choose another file with penstock report --output")
        raise ConfigurationError(f"can't write {output}: {reason}") from None


def write_at_end(folder: RunFolder) -> str:
    """Writes the report of a run that has ended into its folder; returns why it could not, in one line, or nothing."""
    if not folder.metrics.exists():
        return ""
    try:
        write([folder], folder.report)
    except PenstockError as error:
        return f"the report is not written: {error}"
    # The result of the run is complete, and must not be lost to its report.
    except Exception as error:
        return f"the report is not written: {type(error).__name__}: {error}; penstock report {folder.root} shows where"
    return ""


def page(runs: Sequence[ReportedRun], *, with_films: bool = False) -> str:
    """Returns the report of at least one run, as an HTML document. Films make a page larger by megabytes."""
    environments = list(dict.fromkeys(run.curve.environment_id for run in runs))
    only = runs[0] if len(runs) == 1 else None
    heading = ", ".join(environments)
    opening = only.verdict if only else f"{len(runs)} runs"
    parts = [f"<header><h1>{escape(heading)}</h1>"]
    if only:
        parts.append(f'<p class="verdict {_mood(only)}">{escape(only.verdict)}</p>')
        about = f"{only.name} · seed {only.curve.seed} · {only.state}"
        parts.append(f'<p class="about">{escape(about)}</p></header>{_of_one(only)}')
    else:
        parts.append(f'<p class="about">{len(runs)} runs</p></header>{_comparison(runs)}')
    for environment in environments:
        there = [run for run in runs if run.curve.environment_id == environment]
        name = f"Returns of {environment}" if len(environments) > 1 else "Returns"
        parts.append(_charts(name, there))
    parts += [films(runs)] if with_films else []
    parts.append(_waits(only) if only else _details(runs))
    parts.append(_settings(runs))
    return document(f"{heading}: {opening}", "".join(parts))


def document(title: str, body: str) -> str:
    """Returns a complete HTML document with the style of reports. `title` is not escaped, and `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _mood(run: ReportedRun) -> str:
    if run.summary is None or run.curve.threshold is None:
        return ""
    return "good" if run.verdict.startswith("solved") else "poor"


def _of_one(run: ReportedRun) -> str:
    tiles = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd><dd class=remark>{escape(remark)}</dd></div>"
        for label, value, remark in run.figures
    )
    hints = "".join(f"<li>{escape(hint.text)}</li>" for hint in run.hints)
    return f'<dl class="tiles">{tiles}</dl>{f"<h2>Hints</h2><ul class=hints>{hints}</ul>" if hints else ""}'


def _charts(name: str, runs: Sequence[ReportedRun]) -> str:
    """Returns the charts of runs of one environment. Those that differ only by seed share a line."""
    groups = gather_by_settings([run.curve for run in runs])
    most = max(_LEAST_POINTS, _MOST_IN_ALL // len(groups))
    lines: list[Line | None] = []
    for number, (label, group) in enumerate(groups):
        seeds = f"{len(group)} seeds, mean and range" if len(group) > 1 else f"seed {group[0].seed}"
        suffix = (f": {label}, {seeds}" if label else f": {seeds}") if len(runs) > 1 else ""
        colour, points = number % _COLOURS, min(_MOST_POINTS, most)
        training, evaluation = [each.training for each in group], [each.evaluation for each in group]
        lines.append(line_of(f"training{suffix}", training, points, colour=colour, faint=True))
        lines.append(line_of(f"evaluations{suffix}", evaluation, points, colour=colour))
    threshold = next((run.curve.threshold for run in runs if run.curve.threshold is not None), None)
    returns = chart("episode return, over environment steps", _known(lines), level=threshold, large=True)
    parts = [f"<h2>{escape(name)}</h2>", returns or "<p class=about>No episode has ended yet.</p>"]
    infos = dict.fromkeys(name for run in runs for name in run.curve.details if name.startswith(INFO_METRIC))
    of_infos = [Panel(name.removeprefix(INFO_METRIC), {name: "last 100 episodes"}) for name in infos]
    for heading, panels in {"Infos of episodes": of_infos, **PANELS}.items():
        drawn = "".join(_panel(panel, groups, min(_MOST_SMALL, most)) for panel in panels)
        parts += [f'<h2>{heading}</h2><div class="charts">{drawn}</div>'] if drawn else []
    return "".join(parts)


def _panel(panel: Panel, groups: Sequence[tuple[str, Sequence[Curve]]], most: int) -> str:
    lines: list[Line | None] = []
    for number, (_, group) in enumerate(groups):
        for index, (name, text) in enumerate(panel.lines.items()):
            # Colors tell groups apart, or the lines of the only group.
            colour, dash = (number % _COLOURS, index % _DASHES) if len(groups) > 1 else (index, 0)
            curves = [each.details[name] for each in group if name in each.details]
            lines.append(line_of(text, curves, most, colour=colour, dash=dash))
    # The chart of returns has the colors of the groups.
    legend = _known(lines[: len(panel.lines)])
    return chart(panel.title, _known(lines), log=panel.log, share=panel.share, legend=legend)


def _known(lines: Iterable[Line | None]) -> list[Line]:
    return [line for line in lines if line is not None]


def _waits(run: ReportedRun) -> str:
    """Returns how long the learner waited for what, and figures of replay; empty if nothing is known."""
    statistics = run.statistics
    if statistics is None:
        return ""
    rows = [
        f"<tr><th>{escape(str(wait.reason))}</th><td>{wait.seconds:,.1f} s</td><td>{wait.share:.1%}</td>"
        f'<td class="bar"><i style="width:{100.0 * min(1.0, max(0.0, wait.share)):.1f}%"></i></td></tr>'
        for wait in statistics.waits
    ]
    parts = [
        "<h2>Waits of the learner</h2>",
        f"<div class=wide><table>{''.join(rows)}</table></div>" if rows else "<p class=about>None.</p>",
    ]
    if figures := replay_figures(run.uses, statistics):
        parts.append(f"<p class=about>Replay: {escape(figures.line)}</p>")
    return "".join(parts)


_COLUMNS = ("run", "seed", "state", "return", "best evaluation", "steps", "to threshold", "training", "steps/s")


def _comparison(runs: Sequence[ReportedRun]) -> str:
    labels: dict[tuple[tuple[str, str], ...], str] = {}
    for environment in dict.fromkeys(run.curve.environment_id for run in runs):
        there = [run.curve for run in runs if run.curve.environment_id == environment]
        labels |= {group[0].settings: label for label, group in gather_by_settings(there)}
    rows = []
    for run in runs:
        found, best = run.summary, run.best_evaluation
        outcome = found.evaluation if found else None
        reached = found.env_steps_to_threshold if found else None
        cells = (
            str(run.curve.seed),
            run.state,
            "-" if outcome is None else return_text(outcome.return_mean, outcome.return_std),
            "-" if best is None else return_text(best),
            f"{run.env_steps:,}",
            "-" if reached is None else f"{reached:,}",
            f"{run.training_s:,.1f} s",
            f"{run.env_steps_per_s:,.0f}",
        )
        label = labels[run.curve.settings]
        named = f"{escape(run.name)}{f'<br><small>{escape(_cut(label))}</small>' if label else ''}"
        rows.append(f"<tr><th>{named}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    return f'<div class=wide><table class="runs"><thead><tr>{head}</tr></thead>{"".join(rows)}</table></div>'


def _details(runs: Sequence[ReportedRun]) -> str:
    parts = [
        f"<details><summary><strong>{escape(run.name)}</strong> {escape(run.verdict)}</summary>"
        f"{_of_one(run)}{_waits(run)}</details>"
        for run in runs
    ]
    return f"<h2>Each run</h2>{''.join(parts)}"


def _settings(runs: Sequence[ReportedRun]) -> str:
    """Returns a table of the settings in which a run differs from the defaults."""
    defaults, rows = texts_of({}), []
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        default = defaults.get(name, "-")
        values: dict[str, list[str]] = {}
        for run in runs:
            values.setdefault(run.settings.get(name, default), []).append(run.name)
        shown = "<br>".join(
            escape(_cut(value)) + (f" <small>{escape(_cut(', '.join(names)))}</small>" if len(values) > 1 else "")
            for value, names in values.items()
        )
        cells = f"<th><code>{escape(name)}</code></th><td>{shown}</td><td>{escape(_cut(default))}</td>"
        rows.append(f"<tr>{cells}</tr>")
    head = "<thead><tr><th>setting</th><th>value</th><th>default</th></tr></thead>"
    table = f'<div class=wide><table class="settings">{head}{"".join(rows)}</table></div>'
    return f"<h2>Settings that differ from the defaults</h2>{table}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


_STYLE = """
:root{color-scheme:light dark;--ground:#fff;--text:#1f2328;--dim:#59636e;--rule:#d8dee4;--tile:#f6f8fa;
--c0:#1f6feb;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#57606a;--good:#1a7f37;--poor:#9a6700}
@media(prefers-color-scheme:dark){:root{--ground:#0d1117;--text:#e6edf3;--dim:#9198a1;--rule:#30363d;--tile:#161b22;
--c0:#4493f8;--c1:#f0883e;--c2:#3fb950;--c3:#ab7df8;--c4:#db61a2;--c5:#9198a1;--good:#3fb950;--poor:#d29922}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:70rem;margin:auto;padding:1.5rem 1rem 3rem;overflow-wrap:break-word}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem}
h2{font-size:1.1rem;margin:2rem 0 .6rem;padding-bottom:.3rem;border-bottom:1px solid var(--rule)}
p{margin:.2rem 0}
.verdict{font-size:1.1rem;font-weight:600}.good{color:var(--good)}.poor{color:var(--poor)}
.about,.remark,small,figcaption .legend,summary{color:var(--dim)}
summary strong{color:var(--text)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem;margin:1rem 0}
.tiles div{background:var(--tile);border:1px solid var(--rule);border-radius:6px;padding:.5rem .7rem}
dt{color:var(--dim);font-size:.85rem}dd{margin:0;font-size:1.1rem;font-weight:600;font-variant-numeric:tabular-nums}
dd.remark{font-size:.8rem;font-weight:400}
.hints{margin:0;padding-left:1.2rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,13.5rem),1fr));gap:1rem 1.2rem}
video{width:100%;border-radius:4px}
figure{margin:0;min-width:0}figcaption{font-size:.85rem;font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:0 1rem;font-weight:400}
.key::before{content:"";display:inline-block;width:1.2rem;margin-right:.35rem;vertical-align:middle;
border-top:2px solid currentColor}
.key::before{border-color:var(--k,currentColor)}.key.d1::before{border-top-style:dashed}
.key.d2::before{border-top-style:dotted}.key.level::before{border-top-style:dashed}.key.faint::before{opacity:.45}
.plot{position:relative;height:8.5rem;margin:.5rem .8rem 1.5rem 2.9rem}
.large .plot{height:20rem}.large{padding-bottom:1px}
svg{position:absolute;width:100%;height:100%;overflow:visible}
svg path{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round}
svg .grid{stroke:var(--rule)}svg .level{stroke:var(--dim);stroke-dasharray:5 4}
svg .line{stroke:var(--k);stroke-width:1.6}svg .faint{opacity:.45}
svg .band{fill:var(--k);opacity:.16}svg .dots{stroke:var(--k);stroke-width:5;stroke-linecap:round}
svg .d1{stroke-dasharray:6 3}svg .d2{stroke-dasharray:2 3}
.c0{--k:var(--c0)}.c1{--k:var(--c1)}.c2{--k:var(--c2)}.c3{--k:var(--c3)}.c4{--k:var(--c4)}.c5{--k:var(--c5)}
.plot i{position:absolute;font:normal .75rem/1 system-ui,sans-serif;color:var(--dim);white-space:nowrap;
font-variant-numeric:tabular-nums}
.v{right:100%;margin-right:.45rem;transform:translateY(50%)}.h{top:100%;margin-top:.45rem;transform:translateX(-50%)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .9rem .3rem 0;vertical-align:top;border-bottom:1px solid var(--rule)}
th{font-weight:400}thead th{color:var(--dim)}.runs td{white-space:nowrap}.settings td{max-width:24rem}
.bar{width:14rem;min-width:5rem}.bar i{display:block;height:.8rem;margin-top:.25rem;background:var(--c0)}
details{border-bottom:1px solid var(--rule);padding:.4rem 0}details h2{font-size:1rem;border:0;margin:.8rem 0 .2rem}
"""
