"""Makes names and tables fit a phone; docs/_static/wide.css has the rules for what it marks.

Long names may break after their separators and within CamelCase, and nowhere else. On a phone, a table of words (class
`words`) becomes a list, in which each cell begins with the heading of its column. Tables of numbers scroll beside their
first column.
"""

import html
import re
from typing import Any

from docutils import nodes  # type: ignore[import-untyped]

LONG_NAME = re.compile(r"[^\s<>&;]{16,}")
WITHIN = re.compile(r"(?<=\w)[_./:=,(-]+(?=[^\W\d])|(?<=[a-z])(?=[A-Z])")
"""Places of a name after which a line may end. A number stays whole."""
OPTION = re.compile(r"(?<![\w-])--?\w[\w-]*")
"""An option, or a negative number, which stays whole up to a dot."""
TEXT = re.compile(r"<pre.*?</pre>|(?<=>)[^<]+", re.S)
LONG_CELL = 60
"""Characters of a cell from which a table is one of words."""


def setup(app: Any) -> dict[str, bool]:
    """Registers the extension with Sphinx."""
    app.connect("doctree-resolved", lambda app, document, page: mark_tables(document))
    app.connect("html-page-context", lambda app, page, template, context, document: break_names(context))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def break_names(context: dict[str, Any]) -> None:
    """Adds places for line breaks to the text and to the right column of a page."""
    for part in ("body", "toc"):
        if part in context:
            context[part] = TEXT.sub(_with_breaks, context[part])


def _with_breaks(text: re.Match[str]) -> str:
    if text[0].startswith("<"):
        return text[0]
    whole = OPTION.sub(r'<span class="whole">\g<0></span>', text[0]) if "-" in text[0] else text[0]
    return LONG_NAME.sub(lambda name: WITHIN.sub(r"\g<0><wbr>", name[0]), whole)


def mark_tables(document: nodes.document) -> None:
    """Marks the tables of words, and labels their cells."""
    for table in document.findall(nodes.table):
        head = [cell.astext() for part in table.findall(nodes.thead) for cell in part.findall(nodes.entry)]
        rows = [list(row.findall(nodes.entry)) for body in table.findall(nodes.tbody) for row in body.children]
        # The first cell is the heading of its row.
        labelled = [(name, cell) for row in rows for name, cell in zip(head[1:], row[1:], strict=True) if cell.astext()]
        texts = [cell.astext() for _, cell in labelled]
        numbers = sum(bool(re.search(r"\d", text)) for text in texts)
        if numbers * 2 < len(texts) or max(map(len, texts), default=0) > LONG_CELL:
            table["classes"].append("words")
            for name, cell in labelled:
                # An attribute, which the search does not index.
                label = f'<span class="label" data-label="{html.escape(name)}: "></span>'
                cell.insert(0, nodes.raw("", label, format="html"))
