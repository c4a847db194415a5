"""`penstock plot`: draws the learning curves of runs."""

from collections.abc import Sequence
from pathlib import Path

from penstock.cli.named_run import chosen_run, note_removed_settings
from penstock.cli.one_line_parser import OneLineParser
from penstock.local.learning_curves import draw
from penstock.run_folder import RunFolder


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(prog="penstock plot", description="Draw the learning curves of runs.")
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="runs, of which those that differ only by seed share a curve (default: the newest run)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to draw: .png, .svg or .pdf (default: learning_curve.png, in the run folder if there is only one)",
    )
    named = parser.parse_args(list(arguments))
    folders = [RunFolder(chosen_run(run)) for run in named.runs or [None]]
    output = named.output or (folders[0].learning_curve if len(folders) == 1 else Path("learning_curve.png"))
    for folder in folders:
        note_removed_settings(folder)
    draw(folders, output)
    print(output)
    return 0
