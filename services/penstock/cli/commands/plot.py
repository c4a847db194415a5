"""`penstock plot`: draws the learning curves of runs."""

from collections.abc import Sequence
from pathlib import Path

from penstock.cli.named import chosen_run, note_removed_settings
from penstock.cli.one_line_parser import OneLineParser
from penstock.local.learning_curves import X_AXES, draw
from penstock.runs.folder import RunFolder, has_records


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
    parser.add_argument("--x", choices=X_AXES, default="steps", help="quantity of the horizontal axis [steps]")
    parser.add_argument(
        "--smooth", type=int, default=1, metavar="N", help="draw means over the last N records of training [1]"
    )
    named = parser.parse_args(list(arguments))
    folders = [RunFolder(chosen_run(run, has_records, "records")) for run in named.runs or [None]]
    output = named.output or (folders[0].learning_curve if len(folders) == 1 else Path("learning_curve.png"))
    for folder in folders:
        note_removed_settings(folder)
    draw(folders, output, named.x, named.smooth)
    print(output)
    return 0
