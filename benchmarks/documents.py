"""Sections of documents that benchmarks write."""

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def page_of(name: str) -> Path:
    """Returns the page of docs that has the marks of a section; docs/RESULTS.md if none has."""
    pages = [page for page in sorted(DOCS.glob("*.md")) if f"<!-- study {name}:" in page.read_text()]
    return pages[0] if pages else DOCS / "RESULTS.md"


def write_into(document: Path, name: str, section: str, *, writer: str) -> None:
    """Replaces the text between the marks of this section; appends the marks to a document without them.

    Args:
        document: Page in Markdown; it is created if it does not exist.
        name: Name of the section.
        section: Its text.
        writer: Module that writes it, for readers of the page.
    """
    begin, end = f"<!-- study {name}: written by {writer} -->", f"<!-- end of study {name} -->"
    text = document.read_text() if document.exists() else "# Results\n"
    marked = f"{begin}\n{section}\n{end}"
    if begin in text and end in text:
        before, rest = text.split(begin, 1)
        text = before + marked + rest.split(end, 1)[1]
    else:
        text = f"{text.rstrip()}\n\n{marked}\n"
    document.write_text(text)
