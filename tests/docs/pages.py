"""The pages of the documentation, their code blocks, and the commands in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
_NOT_RUN = r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?"
_FENCE = re.compile(rf"^{_NOT_RUN}```(?P<language>\S*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A code block of a page; `not_run` is the reason why a shell block can't be run."""

    page: str
    line: int
    language: str
    text: str
    not_run: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page.name, text.count("\n", 0, found.start()) + 1, found["language"], found["text"], found["reason"] or ""
        )
        for found in _FENCE.finditer(text)
    ]


def files_of(page: Path) -> dict[str, str]:
    """The files that a page prints, and says to save, by the names in their first lines."""
    return {
        found[1]: block.text
        for block in blocks(page)
        if block.language == "python" and (found := re.match(r'"""(\w+\.py)"""\n', block.text))
    }


def commands_of(text: str) -> list[str]:
    """The commands of a shell block, each on one line without its comment and its redirections."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [re.sub(r"\s(&|[<>] \S+|#.*)$", "", line).strip() for line in joined.splitlines()]
    lines = [re.sub(r"\s+#.*|\s[<>] \S+|\s&$", "", line) for line in lines]
    return [command.strip() for line in lines if line and not line.startswith("#") for command in _split(line)]


def _split(line: str) -> list[str]:
    # Not within quotation marks.
    return [line] if "'" in line else line.split(";")


def spans(text: str) -> list[str]:
    """The code spans of a page, without its blocks."""
    return sorted(set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _FENCE.sub("", text))))
