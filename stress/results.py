"""Result files of the stress programs: the provenance with the command first, then what the program found.

Every program's `main` takes its options from `options` and ends with `write`. A result is written to build/bench, or to
`--output`. `stress.tables` shows the published ones.
"""

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.results.provenance import ROOT, of_this_run

_BEGAN = time.monotonic()
_OUTPUT = "--output"


def options(documentation: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the option `--output`, for the program that this docstring describes.

    The docstring begins with "`make stress-NAME`: ".
    """
    described = re.match(r"`make stress-([a-z-]+)`: (.*)", documentation or "")
    assert described is not None, "a stress program's docstring begins with its make target"
    name = described[1].replace("-", "_")
    parser = argparse.ArgumentParser(prog=f"stress-{described[1]}", description=described[2])
    default = ROOT / "build" / "bench" / f"{name}.json"
    parser.add_argument(_OUTPUT, type=Path, default=default, help=f"result file (default: build/bench/{name}.json)")
    parser.set_defaults(program=parser.prog)
    return parser


def write(arguments: argparse.Namespace, found: Mapping[str, object]) -> None:
    """Writes a result file: provenance with the command, duration in seconds, then what was found."""
    document = {
        **of_this_run(),
        "command": command_of(arguments.program, sys.argv[1:]),
        "took_s": round(time.monotonic() - _BEGAN),
        **found,
    }
    output: Path = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {output}")


def command_of(program: str, words: list[str]) -> str:
    """Returns the command line that repeats a run, without the place of its result."""
    kept, rest = list[str](), iter(words)
    for word in rest:
        if word == _OUTPUT:
            next(rest, None)
        elif not word.startswith(f"{_OUTPUT}="):
            kept.append(word)
    return f"make {program}" + (f" ARGS={shlex.quote(shlex.join(kept))}" if kept else "")
