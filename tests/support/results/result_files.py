"""The results that the documentation quotes, as results/index.toml lists them, and what each file says of itself.

`benchmarks.tables` writes pages from it, and tests/docs/test_result_files.py checks it. Nothing here measures.
"""

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
INDEX = RESULTS / "index.toml"
PAGE_OF_CHANGES = "docs/RESULTS.md"
"""Page that lists the changes of the algorithm."""
_LEARNING = "algorithm"
"""Name of the group of code after whose changes results of learning differ."""
_COMMIT = re.compile(r"[0-9a-f]{12,40}(\+changes)?|unknown")


@dataclass(frozen=True, slots=True)
class Result:
    """A result file.

    Attributes:
        name: Path below results.
        command: Command that writes it.
        pages: Pages that quote it. The first one states its origin if it has gaps, and then that of its other files.
        code: Name of the group of paths whose code it measures.
        minutes: Minutes of the command on a quiet machine of two cores; None if it is not repeated for a release.
        pictures: Pictures that are drawn from it, below results.
        date: Date and time (UTC) of the measurement or of its publication, if the file has none.
        gaps: What is not known of its origin; empty: the file has machine, commit, versions, date and command.
        published: Commit that published a file with gaps; it was measured before.
        written_by: Test that writes the file and checks that it is current; empty: a measurement.
        deleted: Path of the program of the command, and text in it, if this text was deleted after the measurement.
    """

    name: str
    command: str = ""
    pages: tuple[str, ...] = ()
    code: str = ""
    minutes: float | None = None
    pictures: tuple[str, ...] = ()
    date: str = ""
    gaps: str = ""
    published: str = ""
    written_by: str = ""
    deleted: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return RESULTS / self.name

    @property
    def in_origins(self) -> bool:
        """Whether its first page has its origin in a table: if it has gaps, or may differ from learning today."""
        return bool(self.gaps) or self.code == _LEARNING

    def document(self) -> Any:
        """Returns the content of a JSON file; an empty one for texts."""
        return json.loads(self.path.read_text()) if self.path.suffix == ".json" else {}

    def measured(self, document: Any) -> str:
        """Returns date and time of the measurement; empty if they are not known."""
        return str(self.date or next(values_of(document, "date"), ""))


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the algorithm after which results of learning differ: its commit, date and time (UTC), and text."""

    commit: str
    date: str
    what: str


@dataclass(frozen=True, slots=True)
class Index:
    """The content of results/index.toml.

    Attributes:
        results: Result files by name.
        code: Paths of each group of code.
        changes: Changes of the algorithm, the oldest first.
        declared: Phrases of README.md with numbers that are no measurements.
    """

    results: Mapping[str, Result]
    code: Mapping[str, Sequence[str]]
    changes: Sequence[Change]
    declared: Sequence[str]


def read_index() -> Index:
    """Returns the index. Raises `TypeError` for an unknown field."""
    content = tomllib.loads(INDEX.read_text())
    results = {name: _result(name, fields) for name, fields in content["results"].items()}
    changes = [Change(**each) for each in content["changes"]]
    return Index(results, content["code"], changes, content["readme"]["declared"])


def _result(name: str, fields: Mapping[str, Any]) -> Result:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return Result(name, **values)


def values_of(content: Any, key: str) -> Iterator[Any]:
    """Yields the values of a key at any depth of a JSON document."""
    if isinstance(content, dict):
        if key in content:
            yield content[key]
        content = list(content.values())
    if isinstance(content, list):
        for each in content:
            yield from values_of(each, key)


def commits_of(document: Any) -> list[str]:
    """Returns the commits of a document's provenance and of its runs, in order, each once."""
    found = (each for each in values_of(document, "commit") if isinstance(each, str) and _COMMIT.fullmatch(each))
    return list(dict.fromkeys(found))


def lacking(result: Result, document: Any) -> list[str]:
    """Returns what a file and the index do not state of its origin: words for a message."""
    needed = {
        "a machine": any(values_of(document, "machine")),
        "a commit": bool(commits_of(document)),
        "versions": any(values_of(document, "packages")),
        "a date": bool(result.measured(document)),
        "a command": bool(result.command),
        "a commit without local changes": not any("+changes" in commit for commit in commits_of(document)),
        "a known commit": "unknown" not in commits_of(document),
    }
    return [what for what, stated in needed.items() if not stated]


def origins(index: Index, page: str) -> str:
    """Returns the table of the files of a page with gaps or of learning, with the numbers of the changes since.

    The parts that a page has of other files state their origin themselves.
    """
    results = [each for each in index.results.values() if each.pages[0] == page and each.in_origins]
    learning = any(each.code == _LEARNING for each in results)
    heads = ["result", "command", "measured", *([f"[changes]({_changes_for(page)}) since"] if learning else [])]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for each in results:
        cells = [
            f"[{each.name}]({_link(page)}{each.name})",
            "deleted since" if each.deleted else f"`{each.command}`",
            _measured(each),
            *([_numbers_since(each, index.changes)] if learning else []),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def numbered_changes(index: Index) -> str:
    """Returns the list of the changes of the algorithm, whose numbers tables of origins name."""
    return "\n".join(
        f"{number}. `{each.commit}`, {each.date[:10]}: {each.what}" for number, each in enumerate(index.changes, 1)
    )


def _numbers_since(result: Result, changes: Sequence[Change]) -> str:
    date = result.measured(result.document())
    since = [number for number, change in enumerate(changes, 1) if change.date > date]
    if result.code != _LEARNING or not since:
        return ""
    return str(since[0]) if len(since) == 1 else f"{since[0]} to {since[-1]}"


def _changes_for(page: str) -> str:
    return f"{'' if page == PAGE_OF_CHANGES else Path(PAGE_OF_CHANGES).name}#changes-of-the-algorithm"


def _link(page: str) -> str:
    return "../results/" if page.startswith("docs/") else "results/"


def _measured(result: Result) -> str:
    document = result.document()
    date = result.measured(document)[:10]
    if result.gaps:
        return f"before commit `{result.published}`, {date}; {result.gaps}"
    commits = [f"`{commit[:12]}`" for commit in commits_of(document)]
    shown = f"commits {', '.join(commits[:2])}" if len(commits) == 2 else f"{len(commits)} commits"
    return f"{f'commit {commits[0]}' if len(commits) == 1 else shown}, {date}"


def has_history() -> bool:
    """Returns whether this is a checkout with all commits."""
    try:
        return git("rev-parse", "--is-shallow-repository") == "false"
    except (OSError, subprocess.CalledProcessError):
        return False


def is_in_history(commit: str) -> bool:
    """Returns whether a commit is an ancestor of the checkout's, or that one."""
    try:
        git("merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError:
        return False
    return True


def changed_code(index: Index, result: Result) -> list[str]:
    """Returns the paths whose code differs from that which a file measured, by any of its commits.

    A change of comments and docstrings alone is none. Raises `subprocess.CalledProcessError` for an unknown commit.
    """
    return sorted(
        {
            path
            for commit in commits_of(result.document())
            for path in git("diff", "--name-only", commit, "--", *index.code[result.code]).splitlines()
            if _code_at(commit, path) != _code_of(path, ROOT / path)
        }
    )


def is_quotable(index: Index, name: str) -> bool:
    """Returns whether README.md may quote a file: its origin is known, and its code has not changed since.

    Raises `RuntimeError` without the history.
    """
    result = index.results[name]
    if not has_history():
        raise RuntimeError("README.md is written from a checkout with its whole history: git fetch --unshallow")
    return (
        not result.gaps and all(map(is_in_history, commits_of(result.document()))) and not changed_code(index, result)
    )


def _code_at(commit: str, path: str) -> str | None:
    try:
        return _normalised(path, git("show", f"{commit}:{path}"))
    except subprocess.CalledProcessError:
        return None


def _code_of(path: str, file: Path) -> str | None:
    return _normalised(path, file.read_text().strip()) if file.exists() else None


def _normalised(path: str, text: str) -> str:
    """Returns Python without comments and docstrings, and other text as it is."""
    if not path.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def git(*words: str) -> str:
    """Returns the output of git in this checkout. Raises `subprocess.CalledProcessError` and `OSError`."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()
