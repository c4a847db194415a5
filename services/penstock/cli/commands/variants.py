"""`penstock variants`: lists the variants that the actors of a run play in turn, adds some, and retires some."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from penstock.cli.named import chosen_run
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.operator import change_variants
from penstock.config.setting_types import read_table
from penstock.errors import ConfigurationError
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import return_text
from penstock.types.variants import Arguments, RunVariant, VariantChange

_ACTIONS = ("list", "add", "retire")
_USAGE = "penstock variants [list | add NAME=VALUE,... ... | retire NUMBER ...] [--run RUN] [--all] [--json]"


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(
        prog="penstock variants",
        usage=_USAGE,
        description="List the variants that the actors of an active run play in turn (environment.vary), add variants,"
        " or retire variants.",
    )
    parser.add_argument(
        "words", nargs="*", metavar="list | add NAME=VALUE,... | retire NUMBER", help="what to do; default: list"
    )
    parser.add_argument("--run", metavar="RUN", help="folder or name of the run (default: the newest active one)")
    parser.add_argument("--all", action="store_true", help="list retired variants, too")
    parser.add_argument("--json", action="store_true", help="print the variants as a JSON list of objects")
    named = parser.parse_args(list(arguments))
    action, *others = named.words or ["list"]
    if action not in _ACTIONS or (action == "list") == bool(others):
        raise ConfigurationError(f"expected list, add with tables or retire with numbers; usage: {_USAGE}")
    change = VariantChange(
        add=[_table_of(each) for each in others] if action == "add" else (),
        retire=[_number_of(each) for each in others] if action == "retire" else (),
    )
    folder = RunFolder(chosen_run(named.run, lambda folder: folder.services.exists(), "an active learner"))
    known = change_variants(folder, change)
    shown = (
        known[len(known) - len(change.add) :]
        if change.add
        else [each for each in known if named.all or not each.retired]
    )
    if named.json:
        print(json.dumps([asdict(each) for each in shown]))
    else:
        Console(highlight=False).print(_table(shown))
    return 0


def _table_of(text: str) -> Arguments:
    try:
        return read_table(text)
    except ValueError as error:
        raise ConfigurationError(f"a variant to add {error}") from error


def _number_of(text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"expected the number of a variant to retire, got {text!r}")
    return int(text)


def _table(variants: Sequence[RunVariant]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("variant", "share", "episodes", "return"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("arguments", overflow="fold")
    for each in variants:
        table.add_row(
            str(each.number),
            "retired" if each.retired else f"{each.share:.2f}",
            f"{each.episodes:,}",
            "-" if each.return_mean is None else return_text(each.return_mean),
            each.name,
        )
    return table
