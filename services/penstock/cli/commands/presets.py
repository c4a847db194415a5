"""`penstock presets`: lists the presets, or prints the settings of one, as a file for --config."""

from collections.abc import Sequence

from penstock import presets
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.screen.lines import aligned


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(
        prog="penstock presets", description="List the presets, or print one as a file for `penstock train --config`."
    )
    parser.add_argument("preset", nargs="?", metavar="NAME", help="preset to print (default: list all)")
    named = parser.parse_args(list(arguments))
    if named.preset is None:
        print("\n".join(preset_table()))
    else:
        print(presets.preset_text(named.preset), end="")
    return 0


def preset_table() -> list[str]:
    """Returns the lines of a table of all presets."""
    rows = [("preset", "environment", "steps", "solved at"), *presets.described_presets()]
    return aligned(rows)
