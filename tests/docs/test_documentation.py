"""What the documentation names exists: files, make targets, commands with their options, settings, terms."""

import ast
import contextlib
import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import environment_results
import environment_support
import gymnasium
import installation_results
import nodes_results
import pytest
import side_by_side_results
from torch.distributed.run import get_args_parser

from penstock.acting.values.spaces import describe, segment_schema
from penstock.cli import main as cli
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.options import parse
from penstock.config import Config, setting_names
from penstock.config.removed import REMOVED
from penstock.errors import ConfigurationError
from penstock.presets import preset
from penstock.types.codecs import encodable
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from penstock.types.statistics import Drops, LearningNumbers, declared
from tests.deploy.manifests import rendered
from tests.docs.pages import PAGES, ROOT, Block, blocks, commands_of, spans
from tests.rules import for_each

BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [(block, command) for block in BLOCKS if block.language == "sh" for command in commands_of(block.text)]
SPANS = sorted({(page.name, span) for page in PAGES for span in spans(page.read_text())})
PROGRAMS = {
    "python3",
    "penstock",
    "cd",
    "ln",
    "prometheus",
    "make",
    "docker",
    "eval",
    "kubectl",
    "ray",
    "rsync",
    "sbatch",
    "scancel",
    "srun",
    "sky",
    "git",
    "tar",
    "torchrun",
    "mkdir",
    "python",
    "pip",
    "pytest",
    "ssh",
    "chown",
    "chmod",
    "rm",
    "export",
    "openssl",
    "sh",
    "tsp",
}


def test_the_table_of_supported_environments_is_current() -> None:
    text = environment_support.PAGE.read_text()
    assert environment_support.with_table(text) == text, "run `make docs`"


def test_the_tables_of_trained_environments_are_current() -> None:
    text = environment_results.PAGE.read_text()
    assert environment_results.with_tables(text) == text, "run `make docs`"


def test_the_tables_of_the_installation_are_current() -> None:
    text = installation_results.PAGE.read_text()
    assert installation_results.with_tables(text) == text, "run `make docs`"


@for_each("page", ["Makefile", "docs/getting-started.md"])
def test_the_size_of_the_development_environment_is_measured(page: str) -> None:
    result = json.loads((ROOT / "results" / "development.json").read_text())
    assert f"{result['size_mb'] / 1e3:.1f} GB" in (ROOT / page).read_text()


@for_each("page", [page for page in nodes_results.PAGES if (nodes_results.DOCS / page).exists()])
def test_the_failure_tables_are_current(page: str) -> None:
    text = (nodes_results.DOCS / page).read_text()
    assert nodes_results.with_tables(text) == text, "run `make docs`"


@for_each("page", side_by_side_results.PAGES)
def test_the_tables_of_comparisons_are_current(page: str) -> None:
    text = (side_by_side_results.DOCS / page).read_text()
    assert side_by_side_results.with_table(page, text) == text, "run `make docs`"


@for_each("block", BLOCKS)
def test_a_block_has_a_language(block: Block) -> None:
    assert block.language, f"{block}: write ```sh for commands, ```text for anything else"


@for_each("block", [block for block in BLOCKS if block.language != "sh"])
def test_a_block_is_no_wider_than_a_page(block: Block) -> None:
    # Commands are wrapped (docs/_static/wide.css).
    assert max(map(len, block.text.splitlines())) <= 100


# Commands


class Parsed(Exception):
    """The options of a command were accepted."""


def check_penstock(arguments: list[str], monkeypatch: pytest.MonkeyPatch, *, values: bool = True) -> None:
    """Parses a command line with the command's own parser, and checks the values of settings."""
    own: Callable[..., Any] = OneLineParser.parse_args

    def parse_args(self: OneLineParser, *given: Any, **named: Any) -> None:
        own(self, *given, **named)
        raise Parsed

    if not arguments or {"...", "--help", "--help-all"} & set(arguments):
        assert set(arguments) <= {*cli._COMMANDS, "--help", "--help-all", "..."}
        return
    with monkeypatch.context() as patched:
        patched.setattr(OneLineParser, "parse_args", parse_args)
        with pytest.raises(Parsed):
            assert cli._run(arguments) == 0
    settings = arguments[0] in ("train", "learner", "actor", "evaluator")
    if values and settings and not {"--resume", "--config"} & set(arguments):
        parse("penstock", "", arguments[1:], trains=arguments[0] == "train")


def check_make(arguments: list[str]) -> None:
    for target in arguments:
        if "=" not in target and target != "...":
            kind, _, name = target.partition("-")
            program = ROOT / {"bench": "benchmarks", "stress": "stress"}.get(kind, "-") / f"{name.replace('-', '_')}.py"
            package = program.with_suffix("") / "__main__.py"
            assert target in TARGETS or program.exists() or package.exists(), f"no target make {target}"


def test_a_command_in_a_message_is_valid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for path in sorted((ROOT / "services" / "penstock").rglob("*.py")):
        for text in texts_of(ast.parse(path.read_text())):
            for command in re.findall(r"`penstock ([^`\n>]+)", text):
                words = [word for word in command.replace("COMMAND", "train").split() if "--help" not in word]
                # Texts that name a command may omit its operands and values.
                with contextlib.suppress(Exception, SystemExit, pytest.fail.Exception):
                    check_penstock([word.strip("[]") for word in words], monkeypatch, values=False)
                if re.search("unknown|unexpected|no command", capsys.readouterr().err):
                    wrong.append(f"{path.relative_to(ROOT)}: penstock {command}")
    assert wrong == []


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yields the texts in code, with RUN in place of each value that is put into one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "RUN" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


KINDS = {"job", "deployment", "statefulset"}


MODULES_OF_OTHERS = {"stable_retro.import"}


def check_python(arguments: list[str]) -> None:
    if "-c" in arguments:
        compile(arguments[arguments.index("-c") + 1], "<documentation>", "exec")
        return
    if "-m" not in arguments:
        assert (ROOT / arguments[0]).exists(), f"no file {arguments[0]}"
        return
    name = arguments[arguments.index("-m") + 1]
    if name in MODULES_OF_OTHERS:
        return
    module = ROOT / name.replace(".", "/")
    assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), f"no module {module}"


def check_torchrun(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # A variable of Slurm stands for a number or an address.
    words = ["1" if word.startswith("$") else word for word in arguments]
    given = get_args_parser().parse_args(words)
    assert (given.module, given.training_script) == (True, "penstock")
    check_penstock(given.training_script_args, monkeypatch)


def check_files(arguments: list[str], options: tuple[str, ...]) -> None:
    for option, value in itertools.pairwise(arguments):
        if option in options:
            assert (ROOT / value).exists(), f"no file {value}"


def check_kubectl(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks folders, the objects that are named as kind/name or after their kind, and commands in a pod."""
    if "--" in arguments:
        end = arguments.index("--")
        if arguments[end + 1] == "penstock":
            check_penstock(arguments[end + 2 :], monkeypatch)
        arguments = arguments[:end]
    check_files(arguments, ("-k", "kustomize"))
    known = {(each["kind"].lower(), each["metadata"]["name"]) for each in rendered()}
    given = {pair for each in arguments if "/" in each for pair in [tuple(each.split("/"))] if pair[0] in KINDS}
    for kind in KINDS & set(arguments):
        rest = arguments[arguments.index(kind) + 1 :]
        given |= {(kind, name) for name in itertools.takewhile(lambda word: not word.startswith("-"), rest)}
    assert given <= known, f"no {given - known} in deploy/kubernetes"


def check_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    program, arguments = Path(words[0]).name, words[1:]
    assert program in PROGRAMS, f"unknown program {program}"
    if "penstock" in arguments and program in ("docker", "tsp"):
        check_penstock(arguments[arguments.index("penstock") + 1 :], monkeypatch)
    match program:
        case "penstock":
            check_penstock(arguments, monkeypatch)
        case "make":
            check_make(arguments)
        case "python":
            check_python(arguments)
        case "docker":
            check_files(arguments, ("-c",) if arguments[0] == "stack" else ("-f",))
        case "torchrun":
            check_torchrun(arguments, monkeypatch)
        case "srun":
            check_command(arguments[-1], monkeypatch)
        case "eval":
            check_command(arguments[0].removeprefix("$(").removesuffix(")"), monkeypatch)
        case "sh":
            check_files(["", *arguments[:1]], ("",))
        case "prometheus":
            check_files([part for each in arguments for part in each.split("=", 1)], ("--config.file",))
        case "kubectl":
            check_kubectl(arguments, monkeypatch)
        case "pytest":
            check_files(["", *arguments], ("",))


@for_each(("block", "command"), COMMANDS)
def test_a_command_of_a_shell_block_is_valid(block: Block, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_command(command, monkeypatch)


INLINE = [(page, span) for page, span in SPANS if re.match(r"(penstock [a-z]|make [a-z]|python -m )", span)]


@for_each(("page", "span"), INLINE)
def test_a_command_in_the_text_is_valid(page: str, span: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(span)
    if words[0] != "penstock":
        check_command(span, monkeypatch)
    elif len(words) == 2:
        # The name of a command, or of several.
        assert set(words[1].split("|")) <= {*cli._COMMANDS}
    elif "[" not in span:
        # Text may omit an operand, or the value of the last option.
        omitted = words[-1].startswith("--") or words[1] == "evaluate"
        check_penstock([*words[1:], *(["RUN"] if omitted and "RUN" not in words else [])], monkeypatch, values=False)


def test_a_wrong_option_and_a_wrong_target_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        "penstock train --ppo.epoch 4",
        "penstock evaluate RUN --films",
        "make trian",
        "python -m benchmarks.x",
        "python examples/x.py",
        "torchrun --nproc-per-nodes 2 -m penstock learner",
        "torchrun --nproc-per-node 2 -m penstock learner --ppo.epoch 4",
        "srun sh -c 'torchrun --nproc-per-node 2 -m penstock learner --ppo.epoch 4'",
        "kubectl scale deployment penstock-actors --replicas 2",
        "kubectl logs job/learner",
        "kubectl apply -k deploy/kubernets",
        "kubectl exec deployment/penstock-tools -- penstock evaluate RUN --films",
    ):
        with pytest.raises((Exception, SystemExit)):
            check_command(wrong, monkeypatch)


# Names


PLACES = [
    ROOT,
    ROOT / "examples" / "nes" / "games" / "Catch-Nes-v0",
    ROOT / "docs",
    ROOT / "services" / "penstock",
    ROOT / "services" / "penstock" / "replay",
    ROOT / "tests" / "e2e",
]
OF_OTHERS = {
    # Files of a run, of a store, of a snapshot and of users, and names of other libraries.
    *("config.toml", "metrics.jsonl", "best.safetensors", "best.json", "summary.json", "versions.json"),
    *("compare.json", "compare/NAME", "sweep/NAME/best.toml", "sweep/NAME/sweep.json"),
    *("tune.json", "base.toml", "best.toml", "tune/NAME", "tune/NAME/slurm.sh", "trials/N/seed-S"),
    *(
        "roster.json",
        "identity.json",
        "roster.copy.json",
        "services.json",
        "store_place.json",
        "targets.json",
        "end_sent.json",
        "copies.json",
        "records.bin",
        "segments.bin",
    ),
    *("store.json", "headers.bin"),
    *("manifest.json", "policy.safetensors", "learning_curve.png", "my_environments.py", "compose.override.yaml"),
    *("ppo_atari.py", "ppo_atari_envpool.py", "ppo_atari_lstm.py", "ppo_continuous_action.py"),
    *("ppo.py", "RUN/logs/SERVICE.log", "mine.toml"),
}
SECTIONS = set(Config.model_fields)
FOLDERS = (
    "build/",
    "runs/",
    "checkpoints/",
    "logs/",
    "videos/",
    "RUN/",
    "launch/",
    "snapshots",
    "replay/replay-0",
    "/",
    "http",
)


PATH = re.compile(r"[\w.{},/-]+\.(py|md|toml|yml|yaml|json|jsonl|proto|bin|png|lock)|[\w-]+(/[\w.-]+)+/?")
PATHS = [
    (page, path)
    for page, path in SPANS
    if PATH.fullmatch(path) and path not in OF_OTHERS and not path.startswith(FOLDERS) and "..." not in path
]


@for_each(("page", "path"), PATHS)
def test_a_path_in_the_text_exists(page: str, path: str) -> None:
    # Prose may omit a folder that it has just named.
    found = any((place / path).exists() for place in PLACES) or any((ROOT / "services").rglob(path))
    assert found or ("/" not in path and any(ROOT.glob(f"[dpt]*/**/{path}"))), f"{page} names {path}"


NAMED = [
    (page, f"{name[1]}.{name[2].replace('-', '_')}")
    for page, span in SPANS
    if (name := re.match(r"(?:--)?([a-z]+)\.([a-z][a-z_.-]+)(?![\w(/*])", span)) and not PATH.fullmatch(span)
]


@for_each(("page", "name"), [(page, name) for page, name in NAMED if name.split(".")[0] in SECTIONS])
def test_a_setting_in_the_text_exists(page: str, name: str) -> None:
    assert name in setting_names() or (page == "compatibility.md" and name in REMOVED), f"{page} names {name}"


def refusal(name: str, value: str) -> str:
    """Returns why a setting does not accept this value; empty if it does, if need be with other settings."""
    option = f"--{name.replace('_', '-')}={shlex.split(value)[0]}"
    try:
        parse("penstock", "", ["--preset", "cartpole", option], trains=True)
    except ConfigurationError as error:
        return str(error) if f"{name} must be" in str(error) else ""
    return ""


VALUES = sorted(
    {
        (page, setting, stated[2])
        for page, span in SPANS
        if (stated := re.fullmatch(r"(?:--)?([a-z]+\.[a-z_-]+) (\S+)", span))
        and (setting := stated[1].replace("-", "_")) in setting_names()
        and page != "compatibility.md"
    }
)


@for_each(("page", "name", "value"), VALUES)
def test_a_value_of_a_setting_in_the_text_is_accepted(page: str, name: str, value: str) -> None:
    assert not refusal(name, value), f"{page}: {refusal(name, value)}"


def test_a_value_that_a_setting_refuses_is_found() -> None:
    assert refusal("sampling.off_policy_degree", "-2")
    assert refusal("learner.execution", "fast")


def test_the_table_of_removed_settings_is_complete() -> None:
    rows = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \| ([\d.]+) \|", (ROOT / "docs" / "compatibility.md").read_text(), re.M)
    assert rows == [(name, removed.release) for name, removed in REMOVED.items()]


@for_each("page", PAGES)
def test_a_link_has_a_text(page: Path) -> None:
    # Sphinx would fill it in, and a code host shows nothing.
    assert "[](" not in page.read_text()


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not target.startswith("http"):
                yield page, target


@for_each(("page", "target"), list(links()))
def test_a_link_leads_to_a_file_and_a_heading(page: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    path = (page.parent / file) if file else page
    if path.parent == ROOT / "docs" / "reference":
        return
    assert path.exists(), f"{page.name} links {target}"
    if anchor:
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        names = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in names, f"{page.name} links {target}"


# Messages


HANDBOOK = ("OPERATIONS.md", "alerts.md", "compose.md", "sizing.md")


def texts_of_the_code() -> str:
    sources = [*(ROOT / "services").rglob("*.py"), *ROOT.glob("Dockerfile*"), *(ROOT / "docs").glob("*.md")]
    texts = [path.read_text() for path in sources if path.name not in HANDBOOK]
    # Adjacent strings are one.
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


FOREIGN = re.compile(
    r"[Pp]ermission denied|[Nn]o space left|[Rr]ead-only file|[Tt]oo many open|Input/output error|[Aa]ddress already in"
    r"|userland proxy|Health check exceeded|could not select device|No usable temporary|file changed as we read it"
    r"|systemctl|grafana cli|sum\(|^/|^waiting for|^unknown setting|^this run trains|can't be used$|^evaluator evaluate"
)
"""Messages of other programs, and those whose values a fragment contains."""

COMMAND = re.compile(r"(docker|penstock|make|python|sh|ssh|scontrol) |[A-Z_]+=")

QUOTED = sorted(
    {
        fragment.strip(" ;,.:")
        for page, span in SPANS
        if page in HANDBOOK and " " in span and not COMMAND.match(span)
        for fragment in re.split(r"\.\.\.|;|: |\d+|--\S+", span)
    }
)


@for_each(
    "fragment",
    [
        fragment
        for fragment in QUOTED
        if len(fragment) > 14
        and " " in fragment
        and fragment.split()[0] not in setting_names()
        and not FOREIGN.search(fragment)
        and not re.match(r"(chown|rm|tar|learner\.|evaluation\.)", fragment)
    ],
)
def test_a_message_that_operations_quotes_is_in_the_code(fragment: str) -> None:
    assert fragment in MESSAGES


MESSAGES = texts_of_the_code()


# Terms


def glossary() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "glossary.md").read_text().partition(":::{glossary}\n")[2].partition(":::")[0]
    entries = (entry.split("\n  ") for entry in text.strip().split("\n\n"))
    return [(term, meaning) for term, meaning in entries]


def test_the_glossary_has_one_line_for_each_term_in_order() -> None:
    entries = glossary()
    assert all(len(entry) == 2 and "\n" not in entry[1] for entry in entries)
    terms = [term.lower() for term, _ in entries]
    assert terms == sorted(set(terms))


def test_the_glossary_has_the_terms_of_the_status() -> None:
    terms = {term.strip() for entry, _ in glossary() for term in entry.split(",")}
    fields = {*declared(LearningNumbers), *(each.name for each in dataclasses.fields(LearningNumbers))}
    shown = {declared(LearningNumbers)[name].label for name in fields if not name.startswith("fresh_")}
    assert shown <= terms
    assert {"late segment", "given back", "priorities too late", "refused segment"} <= terms
    assert {"late_segments", "refused_segments", "refunded_segments", "overwritten_priorities"} <= set(declared(Drops))


# Numbers


@for_each("name", ["cartpole", "pendulum", "pong"])
def test_the_size_of_a_segment_is_that_of_its_columns(name: str) -> None:
    config = preset(name)
    if name == "pong":
        frames = Tree.of(BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,)))
        spec = EnvironmentSpec("", frames, Tree.of(DiscreteSpace(6)), frames=4)
    else:
        env = gymnasium.make(config.environment.id)
        spec = describe("", env.observation_space, env.action_space)
    schema = segment_schema(spec, config.actor.unroll_length)
    size, forms = schema.segment_bytes, 4 * len(encodable(schema))
    text = (ROOT / "docs" / "sizing.md").read_text()
    row = rf"^\| {name}: .* = {size:,} \| {size + 64 + forms:,} \|"
    assert re.search(row, text, re.MULTILINE), f"{name}: {size:,} bytes"
