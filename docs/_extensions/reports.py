"""Shows the reports among the result files as pages of the site.

On a code host, a page links results/NAME.md itself. Sphinx reads sources from docs only, so the site has a copy of each
report in docs/reference, and its pages link the copies.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def write_pages(folder: Path) -> None:
    """Copies every report that is missing or out of date to a folder in docs."""
    folder.mkdir(exist_ok=True)
    for report in (ROOT / "results").glob("*.md"):
        path, text = folder / report.name, report.read_text().replace("](../docs/", "](../")
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def with_links(text: str, folder: str) -> str:
    """Returns the source of a page of docs with links to the copies in a folder."""
    return re.sub(r"\]\(\.\./results/(\w+\.md)", rf"]({folder}/\1", text)
