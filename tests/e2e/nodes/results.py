"""The failure table of the drill over nodes: one row per fault, printed, and written as the results of the docs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.machine.files import write_json
from tests.e2e.report import Report
from tests.support.machine.timing import Bound
from tests.support.segments.store_ledger import Account


@dataclass(frozen=True, slots=True)
class Row:
    """What one fault did.

    Attributes:
        fault: The fault in words.
        gap_s: Longest time without a new policy version, in seconds; None where it says nothing.
        bound_s: Its bound.
        bound: The bound in words.
        back_s: Seconds until all actors worked again; None where none was lost.
        account: The ledger after it.
        share: Throughput over that of the living actors, of which 1 is all of it; None where it was not measured.
        notes: What else was seen.
    """

    fault: str
    account: Account
    gap_s: float | None = None
    bound_s: float | None = None
    bound: str = ""
    back_s: float | None = None
    share: float | None = None
    notes: str = ""


@dataclass
class Results:
    """Rows of one engine's drill."""

    engine: str
    report: Report
    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        fault: str,
        account: Account,
        *,
        gap: tuple[float, Bound] | None = None,
        back_s: float | None = None,
        share: float | None = None,
        notes: str = "",
    ) -> None:
        """Adds a row, and reports its ledger and its gap, which is compared with a bound."""
        self.report.check(f"{fault}: ledger", account.balanced, str(account), "none lost, duplicated, torn or older")
        if gap is not None:
            self.report.within(f"{fault}: longest time without progress", [gap[0]], gap[1])
        if back_s is not None:
            self.report.note(f"{fault}: all actors are back after", f"{back_s:.1f} s")
        self.rows.append(
            Row(
                fault,
                account,
                None if gap is None else round(gap[0], 1),
                None if gap is None else round(gap[1].seconds, 1),
                "" if gap is None else str(gap[1]),
                None if back_s is None else round(max(0.0, back_s), 1),
                None if share is None else round(share, 3),
                notes,
            )
        )

    def write(self, path: Path, provenance: Mapping[str, Any]) -> None:
        """Writes the rows as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {
            **provenance,
            "engine": self.engine,
            "seconds": round(self.report.seconds),
            "met": self.report.met,
            "rows": [asdict(row) for row in self.rows],
        }
        write_json(path, values)


def table(rows: list[dict[str, Any]]) -> str:
    """Returns rows in their JSON form as a Markdown table."""
    headings = (
        "fault",
        "longest time without a new policy",
        "all actors back",
        "acknowledged segments",
        "lost or duplicated",
        "notes",
    )
    lines = [headings, ("---",) * len(headings)]
    for row in rows:
        account = row["account"]
        lines.append(
            (
                row["fault"],
                _seconds(row["gap_s"]),
                _seconds(row["back_s"]),
                f"{account['acknowledged']:,}",
                str(account["lost"] + account["duplicated"]),
                row["notes"],
            )
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
