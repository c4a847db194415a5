"""The file of results of `make all-environments`, results/environments.json."""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.environments.runs import Result
from tests.environments.suites import FOLDER, ROOT, SUITES, Listed, Suite
from tests.support.results import provenance

PROCEDURE = 1
"""Number of the procedure. After a change of what is run or recorded, a greater number makes all results void."""


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one environment, as in the file. `creation_error` is the error without Penstock, if any."""

    id: str
    suite: str
    kind: str
    observation: str
    action: str
    creation_error: str
    outcome: str
    steps: int
    batches: int
    seconds: float
    message: str
    notes: tuple[str, ...]
    commit: str


def record_of(listed: Listed, result: Result, folder: Path) -> Record:
    """Returns the record of a run below `folder`."""
    return Record(
        id=listed.id,
        suite=listed.suite,
        kind=listed.kind,
        observation=listed.observation,
        action=listed.action,
        creation_error=_neutral(listed.error),
        outcome=result.outcome.value,
        steps=result.steps,
        batches=result.batches,
        seconds=round(result.seconds, 1),
        message=_neutral(result.message, folder),
        notes=tuple(_neutral(note, folder) for note in result.notes),
        commit=short_commit(),
    )


def short_commit() -> str:
    """Returns the commit that a record names, with a mark of changes."""
    found, mark, changes = provenance.commit().partition("+")
    return f"{found[:12]}{mark}{changes}"


def described(record: Record, listed: Listed) -> Record:
    """Returns a record with a new description of its environment."""
    return replace(
        record,
        kind=listed.kind,
        observation=listed.observation,
        action=listed.action,
        creation_error=_neutral(listed.error),
    )


def read(path: Path) -> dict[str, Record]:
    """Returns the records of the current procedure by id; none if the file does not exist."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content["procedure"] != PROCEDURE:
        return {}
    return {each["id"]: Record(**each | {"notes": tuple(each["notes"])}) for each in content["environments"]}


def write(path: Path, records: Iterable[Record], registered: dict[str, dict[str, int]]) -> None:
    """Writes the records in the order of suites and ids, one line each.

    Args:
        path: The file.
        records: All records.
        registered: Number of registered ids of each kind, for each suite that was listed.
    """
    previous = json.loads(path.read_text())["suites"] if path.exists() else {}
    order = {suite.name: place for place, suite in enumerate(SUITES)}
    kinds = {(suite.name, kind): place for suite in SUITES for place, (kind, _) in enumerate(suite.kinds)}
    ordered = sorted(records, key=lambda each: (order[each.suite], kinds[each.suite, each.kind], each.id))
    head = {
        **provenance.of_this_run(),
        "procedure": PROCEDURE,
        "suites": {suite.name: _about(suite, registered, previous) for suite in SUITES},
    }
    lines = ",\n".join(f"    {json.dumps(asdict(each))}" for each in ordered)
    text = json.dumps(head, indent=2).removesuffix("\n}")
    partial = path.with_suffix(".partial")
    partial.write_text(f'{text},\n  "environments": [\n{lines}\n  ]\n}}\n')
    partial.replace(path)


def _neutral(text: str, run: Path | None = None) -> str:
    """Returns a text without the paths of this machine."""
    text = text.replace(str(FOLDER), "ENVIRONMENTS")
    # The list of a suite may have been made in another copy of this repository, whose path has no spaces.
    text = re.sub(r"[\w./-]*/build/environments\b", "ENVIRONMENTS", text)
    for path, name in ((run, "RUNS"), (ROOT, "PENSTOCK"), (sys.prefix, "PYTHON")):
        text = text if path is None else text.replace(str(path), name)
    return text


def _about(
    suite: Suite, registered: dict[str, dict[str, int]], previous: dict[str, dict[str, object]]
) -> dict[str, object]:
    return {
        "title": suite.title,
        "requirements": list(suite.requirements),
        "variables": dict(suite.variables),
        "registered": registered.get(suite.name) or previous.get(suite.name, {}).get("registered", {}),
    }


OUTPUT = ROOT / "results" / "environments.json"
