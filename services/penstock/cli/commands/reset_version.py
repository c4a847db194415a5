"""`penstock replay reset-version FOLDER --to VERSION`: sets the version of a store that no service uses."""

from collections.abc import Sequence
from pathlib import Path

from penstock.cli.one_line_parser import OneLineParser
from penstock.errors import ConfigurationError
from penstock.replay.store.resetting import reset_version

_PROG = "penstock replay reset-version"
_LARGEST = 2**62
"""Largest version, which is also the contract's bound on the version of a batch."""


def command(arguments: Sequence[str]) -> int:
    """Runs the command, whose first argument is `reset-version`; returns its exit code."""
    parser = OneLineParser(
        prog=_PROG,
        allow_abbrev=False,
        description=(
            "Set the version of the store in FOLDER (replay.folder), so that a learner of its run can begin at that"
            " version. Stop the replay service first. Segments of later versions are removed."
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--to", metavar="VERSION", type=int, required=True, help="version at which the learner begins")
    given = parser.parse_args(list(arguments[1:]))
    if not 0 <= given.to <= _LARGEST:
        raise ConfigurationError(f"--to {given.to}: a version is from 0 to {_LARGEST}")
    done = reset_version(given.folder, given.to)
    run = f"run {done.run:016x}" if done.run else "a run without an identity"
    print(
        f"store {given.folder} of {run}: version {done.former_version} -> {given.to}; {done.kept} segments kept,"
        f" {done.removed} of later versions removed"
    )
    return 0
