"""Fake programs for the search path of a command."""

from pathlib import Path


def program(folder: Path, name: str, script: str) -> None:
    """Creates an executable of this name that runs a shell script."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
