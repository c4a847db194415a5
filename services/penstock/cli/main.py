"""`penstock COMMAND`: what it can do, and how it fails: in one line, with exit code 2."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.cli.exit_codes import INTERRUPTED, USAGE_ERROR
from penstock.errors import PenstockError


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its code."""
    # gRPC's core would write complaints of its own, in a format of its own, beside our errors and logs.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # As `python -m penstock` does: a package in the folder where the command is given can be imported.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        import penstock

        print(f"penstock {penstock.__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in _COMMANDS:
        return _fail(f"unknown command {name!r}; there are: {', '.join(_COMMANDS)}")
    try:
        return _COMMANDS[name][0](rest)
    except PenstockError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0


def _fail(message: str) -> int:
    print(f"penstock: {' '.join(message.split())}", file=sys.stderr)
    return USAGE_ERROR


def _help() -> str:
    lines = ["usage: penstock COMMAND [options]", ""]
    lines += [f"  {name:<10} {description}" for name, (_, description) in _COMMANDS.items()]
    return "\n".join([*lines, "", "`penstock COMMAND --help` lists a command's options."])


# Commands import what they run when they run: a replay service must not load torch, nor `--help` anything.


def _train(arguments: list[str]) -> int:
    from penstock.cli.train import command

    return command(arguments)


def _service(name: str) -> Callable[[list[str]], int]:
    def command(arguments: list[str]) -> int:
        import importlib

        from penstock.cli.options import parse

        description = _COMMANDS[name][1]
        options = parse(f"penstock {name}", description, arguments, trains=False)
        importlib.import_module(f"penstock.apps.{name}").run(options.config)
        return 0

    return command


def _replay(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("snapshot", "snapshots"):
        from penstock.cli.snapshots import command

        return command(arguments[0], arguments[1:])
    return _service("replay")(arguments)


def _evaluate(arguments: list[str]) -> int:
    from penstock.cli.evaluate import command

    return command(arguments)


def _plot(arguments: list[str]) -> int:
    from penstock.cli.plot import command

    return command(arguments)


def _status(arguments: list[str]) -> int:
    from penstock.cli.status import command

    return command(arguments)


def _health(arguments: list[str]) -> int:
    from penstock.cli.health import command

    return command(arguments)


def _doctor(arguments: list[str]) -> int:
    from penstock.cli.doctor import command

    return command(arguments)


_COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (_train, "train an agent: all services as processes of this machine"),
    "evaluate": (_evaluate, "play episodes with a trained policy"),
    "plot": (_plot, "draw the learning curves of runs"),
    "status": (_status, "show how a run goes"),
    "replay": (
        _replay,
        "the replay service; `replay snapshot [NAME]` takes a snapshot of it, `replay snapshots` lists",
    ),
    "learner": (_service("learner"), "the learner service"),
    "actor": (_service("actor"), "an actor service"),
    "evaluator": (_service("evaluator"), "the evaluator service"),
    "health": (_health, "ask a service whether it is ready"),
    "doctor": (_doctor, "check whether this machine can do what the settings ask of it"),
}
