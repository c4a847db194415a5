"""Writes pages from the code before Sphinx reads its sources: settings, names of other libraries, presets, commands,
metrics, contract, reports, the table of supported environments, and the tables of environments that were trained on.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batch_picture
import environment_results
import environment_support
import installation_results
import library_words
import nodes_results
import prometheus_client
import reports
import side_by_side_results
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.config import Config, Section
from penstock.config.answers import ANSWERS
from penstock.config.names import ALIASES
from penstock.config.sections import described
from penstock.presets import described_presets
from penstock.telemetry import metrics

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "reference"
COMMANDS = (
    *(
        "train",
        "compare",
        "sweep",
        "tune",
        "evaluate",
        "export",
        "push",
        "plot",
        "report",
        "track",
        "status",
        "variants",
    ),
    *("launch slurm", "launch slurm-actors"),
    *("replay", "learner", "actor", "evaluator", "health", "doctor"),
)
HELP_TIMEOUT_S = 600.0


def setup(app: Any) -> dict[str, bool]:
    """Registers the extension with Sphinx."""
    app.connect("builder-inited", lambda app: write_pages(FOLDER))
    app.connect("builder-inited", lambda app: reports.write_pages(FOLDER))
    app.connect("source-read", lambda app, page, source: _link_reports(source))
    app.connect("include-read", lambda app, path, page, source: _link_from_docs(source))
    app.connect("builder-inited", lambda app: batch_picture.write_picture())
    app.connect("builder-inited", lambda app: environment_support.write_page())
    app.connect("builder-inited", lambda app: environment_results.write_page())
    app.connect("builder-inited", lambda app: installation_results.write_page())
    app.connect("builder-inited", lambda app: side_by_side_results.write_pages())
    app.connect("builder-inited", lambda app: nodes_results.write_pages())
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(folder: Path) -> None:
    """Writes every generated page that is missing or out of date."""
    pages: dict[str, Callable[[], str]] = {
        "settings": settings_page,
        "names": names_page,
        "words": words_page,
        "presets": presets_page,
        "commands": commands_page,
        "metrics": metrics_page,
        "contract": contract_page,
    }
    folder.mkdir(exist_ok=True)
    for name, render in pages.items():
        path, text = folder / f"{name}.md", render()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _link_reports(source: list[str]) -> None:
    source[0] = reports.with_links(source[0], FOLDER.name)


def _link_from_docs(source: list[str]) -> None:
    """Changes the links of README.md to result files, as `relative-docs` does those to pages."""
    source[0] = source[0].replace("](results/", "](../results/")


def settings_page() -> str:
    """One section for each section of the configuration, one entry for each setting."""
    page = [
        "# Settings",
        "Values come, strongest first, from command-line options (`--ppo.epochs 4`), environment variables"
        " (`PENSTOCK__PPO__EPOCHS=4`), a TOML file (`--config`), a preset (`--preset`) and the defaults below.",
    ]
    for name, field in Config.model_fields.items():
        section = field.annotation
        assert isinstance(section, type) and issubclass(section, Section)
        doc = (section.__doc__ or "").strip()
        page += [f"## {name}", doc.removeprefix(f"[{name}] ")]
        page += [_setting(name, key, setting) for key, setting in section.model_fields.items()]
    return _joined(page)


def _setting(section: str, key: str, field: FieldInfo) -> str:
    default = field.default if field.default is not PydanticUndefined else field.default_factory
    shown = "unset" if default is None else repr(default)
    text = _escaped(described(f"{section}.{key}"))
    return f"`{section}.{key}` (default: `{shown}`)\n: {text}"


def names_page() -> str:
    """Tables of the names that other libraries use: those that are accepted, and those that are answered."""
    accepted = [[f"`{name}`", f"`{alias.setting}`", alias.unit] for name, alias in sorted(ALIASES.items())]
    return _joined(
        [
            "# Names of other libraries",
            "Options, files of settings and the Python API accept these names, with dashes or underscores."
            " The third column has the unit where other libraries count something else.",
            _table(["name", "setting", "unit"], accepted),
            "## Names that get an answer",
            "Other names stand for something that Penstock counts in another unit or does otherwise."
            " The command then prints one line with the setting, its unit and a number that works."
            " These are the lines for the defaults and the value 64, or true.",
            "[Words of other libraries](words.md) has the words of each library with its values.",
            _table(["name", "answer"], [[f"`{name}`", _answer(name)] for name in sorted(ANSWERS)]),
        ]
    )


def words_page() -> str:
    """Tables of the words of each library, with the setting or the answer for each."""
    page = [
        "# Words of other libraries",
        "Parameters, options and settings of the libraries that have a page in"
        " [From other libraries](../from-other-libraries.md)."
        " Penstock accepts most of them as they are, and answers the others, or certain values of them, in one line."
        " The numbers in these answers follow from the defaults.",
    ]
    return _joined([*page, *library_words.sections()])


def _answer(name: str) -> str:
    try:
        answer = ANSWERS[name](64, Config())
    except ValueError:
        # The word is a flag.
        answer = ANSWERS[name](True, Config())
    if isinstance(answer, str):
        return _escaped(answer)
    return f"accepted as {library_words.settings_text(answer)}" if answer else "accepted"


def presets_page() -> str:
    """A table of the presets, and the file of each."""
    rows = [
        [f"`{name}`", environment, steps, threshold, f"`penstock train --preset {name}`"]
        for name, environment, steps, threshold in described_presets()
    ]
    page = [
        "# Presets",
        "`penstock train` uses the first preset of its environment; `--preset none` uses the defaults."
        " [The presets](../RESULTS.md#the-presets) has the returns that they reach, and the steps and"
        " the time that they need.",
        _table(["preset", "environment", "environment steps", "solved at", "command"], rows),
    ]
    for name, *_ in described_presets():
        file = DOCS.parent / "services" / "penstock" / "presets" / f"{name}.toml"
        page += [f"## {name}", _block("toml", file.read_text().strip())]
    return _joined(page)


def commands_page() -> str:
    """The help text of each command, without the settings, which have a page of their own."""
    page = ["# Commands", "Services and `penstock train` also take every [setting](settings.md) as an option."]
    page += [_block("text", _help())]
    for command in COMMANDS:
        page += [f"## penstock {command}", _block("text", _help(*command.split()))]
    return _joined(page)


def _help(*command: str) -> str:
    """The output of `penstock COMMAND --help`, with a short usage line and without the settings."""
    result = subprocess.run(
        [sys.executable, "-m", "penstock", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=HELP_TIMEOUT_S,
        env={"PATH": os.environ["PATH"], "COLUMNS": "100", "NO_COLOR": "1"},
    )
    usage, *blocks = result.stdout.strip().split("\n\n")
    if "--run.seed" in usage:
        usage = f"usage: penstock {' '.join(command)} [options] [--SECTION.SETTING VALUE ...]"
    settings = tuple(f"{section} options:" for section in Config.model_fields)
    return "\n\n".join([usage, *(block for block in blocks if not block.startswith(settings))])


def metrics_page() -> str:
    """A table of all metrics with their types and labels."""
    rows = []
    for value in vars(metrics).values():
        if isinstance(value, prometheus_client.metrics.MetricWrapperBase):
            (family,) = value.describe()
            labels = ", ".join(f"`{label}`" for label in value._labelnames)
            name = f"{family.name}_total" if family.type == "counter" else family.name
            rows.append([f"`{name}`", family.type, labels, _escaped(family.documentation)])
    opening = (
        "Every process serves all of these at `/metrics` on its metrics port; those of other services stay at zero."
    )
    return _joined(["# Metrics", opening, _table(["metric", "type", "labels", "meaning"], rows)])


def contract_page() -> str:
    """The protocol's files as they are: their comments are the contract."""
    page = ["# Contract", "The gRPC services and messages. They are enough to write a client in another language."]
    for path in sorted((DOCS.parent / "proto" / "penstock" / "v1").glob("*.proto")):
        page += [f"## {path.name}", _block("protobuf", path.read_text().strip())]
    return _joined(page)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Plain text as Markdown: `<name>` would be taken for HTML, and a bar ends a table's cell."""
    return text.replace("<", r"\<").replace("|", r"\|")


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _joined(paragraphs: list[str]) -> str:
    return "\n\n".join(paragraphs) + "\n"
