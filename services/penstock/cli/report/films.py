"""Films of runs in a report, within the page, so that it stays one file."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from penstock.cli.report.contents import ReportedRun

_MOST_FILMS = 3
"""Most films of a page about one run. One about several runs has one film of each."""

_MOST_BYTES = 3_000_000
"""Size of all films of a page."""


def films(runs: Sequence[ReportedRun]) -> str:
    """Returns the newest films of runs as HTML, and how many more there are; empty if there are none."""
    parts, left, free = list[str](), 0, _MOST_BYTES
    for run in runs:
        found = _newest_first(run.folder.videos)
        shown = 0
        for file in found[: _MOST_FILMS if len(runs) == 1 else 1]:
            content = _read(file, free)
            if content:
                name = file.stem if len(runs) == 1 else f"{run.name}: {file.stem}"
                parts.append(_film(name, content))
                free, shown = free - len(content), shown + 1
        left += len(found) - shown
    if not parts and not left:
        return ""
    more = f"<p class=about>videos/ has {left} more.</p>" if left else ""
    return f'<h2>Films</h2><div class="charts">{"".join(parts)}</div>{more}'


def _newest_first(folder: Path) -> list[Path]:
    try:
        dated = [(file.stat().st_mtime, file) for file in folder.glob("*.mp4")]
    except OSError:
        # A film was removed meanwhile.
        return []
    return [file for _, file in sorted(dated, reverse=True)]


def _read(file: Path, most_bytes: int) -> bytes:
    """Returns the content of a file; nothing if it is larger, or can't be read."""
    try:
        return file.read_bytes() if file.stat().st_size <= most_bytes else b""
    except OSError:
        return b""


def _film(name: str, content: bytes) -> str:
    data = base64.b64encode(content).decode()
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<video controls muted loop playsinline src="data:video/mp4;base64,{data}"></video></figure>'
    )
