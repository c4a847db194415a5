"""`penstock report`: writes a page about runs, or serves it to a browser on this machine."""

from collections.abc import Sequence
from pathlib import Path

from penstock.cli.named import chosen_run, note_removed_settings
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.report.page import write
from penstock.cli.report.serving import serve
from penstock.errors import ConfigurationError
from penstock.machine import background
from penstock.runs.folder import RunFolder, has_records


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(
        prog="penstock report",
        description="Write one HTML page about runs, which a browser shows without a network, or serve it.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="runs, of which those that differ only by seed share a line (default: the newest run)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="page to write (default: report.html, in the run folder if there is only one)",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="serve the page on this machine and keep it current until Ctrl-C, in place of writing it",
    )
    named = parser.parse_args(list(arguments))
    if named.serve and named.output:
        raise ConfigurationError("--serve writes no file; leave out --output")
    folders = [RunFolder(chosen_run(run, has_records, "records")) for run in named.runs or [None]]
    for folder in folders:
        note_removed_settings(folder)
    if named.serve:
        background.lower_priority()
        serve(folders, lambda url: print(f"{url}  (until Ctrl-C)", flush=True))
        return 0
    output = named.output or (folders[0].report if len(folders) == 1 else Path("report.html"))
    write(folders, output)
    print(output)
    return 0
