"""Generated parts of pages, between two marks."""

from collections.abc import Callable
from pathlib import Path


def between(text: str, begin: str, end: str, content: str) -> str:
    """Returns the text of a page with this content between its marks."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def rewrite(page: Path, current: Callable[[str], str]) -> None:
    """Writes the current text of a page, a function of its text, if it differs."""
    text = page.read_text()
    if (new := current(text)) != text:
        page.write_text(new)
