"""What a drill did and measured: told while it goes on, and kept as a table."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at.

    Attributes:
        bound: What it was to be, in words; empty where it is only told.
        met: Whether it was.
    """

    what: str
    measured: str
    bound: str
    met: bool


class Report:
    """Lines as they come."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it was begun."""
        return time.monotonic() - self._started

    @property
    def met(self) -> bool:
        """Whether every bound was kept."""
        return all(line.met for line in self.lines)

    def begin(self, title: str) -> None:
        """Tells what is done next."""
        print(f"\n{self.seconds:5.0f} s  {title}", flush=True)

    def tell(self, what: str, measured: str) -> None:
        """Something without a bound."""
        self._add(Line(what, measured, "", met=True))

    def check(self, what: str, met: bool, measured: str, bound: str) -> None:
        """Something that is so or is not."""
        self._add(Line(what, measured, bound, met))

    def within(self, what: str, seconds: float, bound_s: float) -> None:
        """Something that took so long."""
        self._add(Line(what, f"{seconds:.1f} s", f"at most {bound_s:g} s", seconds <= bound_s))

    def attempt(self, what: str, bound: str, action: Callable[[], str]) -> None:
        """Something that raises if it can't be done, and says what came of it."""
        try:
            self.check(what, True, action(), bound)
        except Exception as error:
            self.check(what, False, str(error), bound)

    def write(self, path: Path) -> None:
        """As a table in Markdown."""
        rows = [
            f"| {line.what} | {_in_a_cell(line.measured)} | {line.bound} | {'yes' if line.met else '**no**'} |"
            for line in self.lines
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["| what | measured | asked | met |", "|---|---|---|---|", *rows]) + "\n")

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        asked = f"  ({line.bound})" if line.bound else ""
        print(f"         {'ok  ' if line.met else 'MISS'}  {line.what}: {line.measured}{asked}", flush=True)


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
