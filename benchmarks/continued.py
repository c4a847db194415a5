"""Results that are written after each run, so that a repeated command continues them."""

import json
from pathlib import Path
from typing import Any, TypeVar

from tests.support.results.provenance import of_this_run

Trained = TypeVar("Trained")


def begun(output: Path, kind: type[Trained]) -> tuple[dict[str, Any], list[Trained]]:
    """Returns the provenance and the runs of a result file of this commit, or those of a new one. Makes its folder."""
    origin: dict[str, Any] = of_this_run()
    output.parent.mkdir(parents=True, exist_ok=True)
    if not output.exists():
        return origin, []
    earlier = json.loads(output.read_text())
    if earlier["provenance"]["commit"] != origin["commit"]:
        return origin, []
    return earlier["provenance"], [kind(**each) for each in earlier["runs"]]
