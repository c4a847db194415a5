"""Runs of a benchmark whose result is written after each, so that a repeated command continues it."""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Trained = TypeVar("Trained", bound="DataclassInstance")


def train_all(
    output: Path,
    kind: type[Trained],
    cases: Iterable[tuple[Any, ...]],
    trained: Callable[..., Trained],
    shown: Callable[[Trained], str],
    about: Mapping[str, Any],
) -> None:
    """Trains in turn the cases that a result file of this commit lacks, and prints each run.

    Args:
        output: The result file, which is written after each run.
        kind: Record of a run, whose first fields are its case.
        cases: The cases.
        trained: Trains a case, whose fields it gets, in a folder for its files, the last argument.
        shown: Returns what is printed of a run.
        about: What the file tells besides the provenance and the runs.
    """
    origin, runs = _begun(output, kind)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for case in cases:
            if case in {astuple(each)[: len(case)] for each in runs}:
                continue
            runs.append(trained(*case, Path(folder)))
            print(*case, shown(runs[-1]), flush=True)
            write_json(output, {"provenance": origin, **about, "runs": [asdict(each) for each in runs]})
    print(f"written to {output}")


def _begun(output: Path, kind: type[Trained]) -> tuple[dict[str, Any], list[Trained]]:
    """Returns the provenance and the runs of a result file of this commit, or those of a new one. Makes its folder."""
    origin: dict[str, Any] = of_this_run()
    output.parent.mkdir(parents=True, exist_ok=True)
    if not output.exists():
        return origin, []
    earlier = json.loads(output.read_text())
    if earlier["provenance"]["commit"] != origin["commit"]:
        return origin, []
    return earlier["provenance"], [kind(**each) for each in earlier["runs"]]
