"""The results of a drill: printed immediately, and written as a table."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.machine.timing import Bound
from tests.support.results.provenance import of_this_run

_HEADINGS = ("what", "measured", "baseline", "ratio", "required", "met")


@dataclass(frozen=True, slots=True)
class Line:
    """One check or measurement.

    Attributes:
        what: Name of the check or measurement.
        measured: Measured value, as text.
        required: Requirement in words; empty if there is none.
        met: Whether the requirement is met.
        baseline: Baseline of a duration, in seconds; otherwise empty.
        ratio: Ratio of a duration to its baseline; otherwise empty.
    """

    what: str
    measured: str
    required: str
    met: bool
    baseline: str = ""
    ratio: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Columns of the table."""
        return (self.what, self.measured, self.baseline, self.ratio, self.required, "yes" if self.met else "**no**")


class Report:
    """Lines in chronological order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start of the report."""
        return time.monotonic() - self._started

    @property
    def met(self) -> bool:
        """Whether every requirement is met."""
        return all(line.met for line in self.lines)

    def begin(self, title: str) -> None:
        """Prints the title of the next step."""
        print(f"\n{self.seconds:5.0f} s  {title}", flush=True)

    def note(self, what: str, measured: str) -> None:
        """Adds a measurement without a requirement."""
        self._add(Line(what, measured, "", met=True))

    def check(self, what: str, met: bool, measured: str, required: str) -> None:
        """Adds a requirement that is met or not."""
        self._add(Line(what, measured, required, met))

    def within(self, what: str, tries: Sequence[float], bound: Bound) -> None:
        """Adds a duration in seconds, of which the last try counts."""
        seconds, missed = tries[-1], ", ".join(f"{each:.1f}" for each in tries[:-1])
        self._add(
            Line(
                what,
                f"{seconds:.1f} s" + (f", after tries of {missed} s" if missed else ""),
                f"at most {bound}",
                seconds <= bound.seconds,
                f"{bound.baseline_s:.1f} s",
                f"{seconds / bound.baseline_s:.2f}",
            )
        )

    def attempt(self, what: str, required: str, action: Callable[[], str]) -> None:
        """Adds an action that raises if it fails, and returns its result."""
        try:
            self.check(what, True, action(), required)
        except Exception as error:
            self.check(what, False, str(error), required)

    def write(self, path: Path, title: str = "The stack of docker-compose.yml") -> None:
        """Writes the report as a Markdown table."""
        rows = [_HEADINGS, ("---",) * len(_HEADINGS), *(line.cells for line in self.lines)]
        path.parent.mkdir(parents=True, exist_ok=True)
        table = "".join(f"| {' | '.join(map(_in_a_cell, row))} |\n" for row in rows)
        path.write_text(f"# {title}\n\n{table}")

    def save(self, path: Path) -> None:
        """Writes the lines with their origin as JSON, for results/."""
        lines = [asdict(line) for line in self.lines]
        path.with_suffix(".json").write_text(json.dumps({**of_this_run(), "lines": lines}, indent=2) + "\n")

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        required = f"  ({line.required})" if line.required else ""
        print(f"         {'ok  ' if line.met else 'MISS'}  {line.what}: {line.measured}{required}", flush=True)


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
