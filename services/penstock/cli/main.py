"""`penstock COMMAND`: runs a command; reports expected errors in one line, with an exit code from `errors`."""

import contextlib
import faulthandler
import importlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import CRASHED, INTERRUPTED, USAGE_ERROR, PenstockError, exit_code
from penstock.machine import background, library_variables
from penstock.machine.installation import program
from penstock.machine.module_imports import loading, uncollected
from penstock.machine.spelling import question, similar
from penstock.machine.system_errors import exhaustion, not_utf8

_SERVICES = ("replay", "learner", "actor", "evaluator")
_LEAVING_S = 5.0
"""Seconds that a finished service may take to exit. Environments may have left threads that never end."""

_COMMANDS = {
    "train": "train an agent, with all services as processes on this machine",
    "launch": "start a run on a cluster",
    "evaluate": "play episodes with a trained policy",
    "compare": "train two settings with the same seeds, and say which is better",
    "sweep": "train a grid of settings, and write the best to a file",
    "tune": "search for settings, and write the best to a file",
    "export": "write a trained policy for programs without Penstock",
    "push": "publish a trained policy in a folder or on the Hugging Face Hub",
    "plot": "draw the learning curves of runs",
    "report": "write a page about runs, or show it in a browser while they train",
    "track": "send the records of a run to W&B, MLflow or Trackio",
    "status": "show the status of a run",
    "variants": "list, add and retire the variants that the actors of a run play in turn",
    "runs": "list the runs of this folder, or remove runs",
    "presets": "list the presets, or print the settings of one",
    "replay": "run the replay service; `replay snapshot`, `snapshots` and `restore` take, list and restore snapshots",
    "learner": "run the learner service",
    "actor": "run an actor service",
    "evaluator": "run the evaluator service",
    "certificates": "make the certificates by which the services of a run know each other",
    "health": "check whether a service is ready",
    "doctor": "check whether this machine meets the requirements of the settings",
    "version": "print the version",
}
"""Commands with their descriptions."""

_ANSWERS = {
    **dict.fromkeys(("list", "ls", "show"), "`penstock runs` lists the runs, and `penstock presets` the presets"),
    **dict.fromkeys(("run", "start", "learn", "fit"), "`penstock train` starts a run"),
    **dict.fromkeys(("resume", "continue", "restart"), "`penstock train --resume` resumes the newest run"),
    **dict.fromkeys(("stop", "kill", "cancel"), "Ctrl-C in the terminal of `penstock train` stops a run"),
    **dict.fromkeys(("enjoy", "play", "eval", "test", "watch"), "`penstock evaluate` plays episodes of the newest run"),
    **dict.fromkeys(("record", "film", "video", "render"), "`penstock evaluate --record-video` films an episode"),
    **dict.fromkeys(("remove", "rm", "delete", "clean", "prune"), "`penstock runs remove NAME` removes a run"),
    **dict.fromkeys(("info", "result", "results", "summary", "monitor"), "`penstock status` shows a run or its result"),
    **dict.fromkeys(("config", "settings"), "`penstock train --help-all` lists all settings"),
    **dict.fromkeys(("logs", "log"), "each run's folder has the logs of its services in logs/"),
    "tensorboard": "`tensorboard --logdir runs` shows every run",
    **dict.fromkeys(
        ("wandb", "mlflow", "trackio"), "`penstock track --to wandb`, mlflow or trackio sends a run to a tracker"
    ),
    **dict.fromkeys(
        ("optimize", "optimise", "optuna", "hpo", "search", "grid"),
        "`penstock tune` searches for settings, `penstock sweep` trains a grid, and `penstock compare` compares two",
    ),
    **dict.fromkeys(("onnx", "convert"), "`penstock export --onnx` writes a trained policy as an ONNX file"),
    **dict.fromkeys(
        ("upload", "publish", "hub"), "`penstock push --to hf://USER/NAME` publishes a trained policy on a hub"
    ),
    **dict.fromkeys(("pull", "download"), "a run is its folder, which you copy"),
    **dict.fromkeys(("install", "update", "upgrade"), "packages are installed with pip"),
    **dict.fromkeys(("environments", "envs"), "every environment of Gymnasium can be trained; name its id"),
    **dict.fromkeys(("check", "diagnose"), "`penstock doctor` checks this machine"),
}
"""Answers to commands that other programs have, by name."""

_OF_REPLAY = {
    "snapshot": "snapshots",
    "snapshots": "snapshots",
    "restore": "restore",
    "reset-version": "reset_version",
}
"""Modules of the commands that follow `penstock replay`; other arguments are options of the service."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its code."""
    background.begin()
    given = list(sys.argv[1:] if arguments is None else arguments)
    name, code = given[0] if given else "", CRASHED
    # gRPC's core writes errors in its own format, which suits a service's log but not the output of a command.
    in_log = name in _SERVICES and not sys.stderr.isatty()
    library_variables.prepare(os.environ)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR" if in_log else "NONE")
    if _is_service(given):
        # Before anything is printed. It loads NumPy, which needs the variables above.
        with uncollected():
            from penstock.process import output
        output.protect()
    try:
        code = _while_read(given)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else CRASHED
        raise
    finally:
        if name in _SERVICES:
            # Without memory for another thread, the process ends without this help.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=_leave, args=(code,), name="leaving", daemon=True).start()
    sys.exit(code)


def _leave(code: int) -> None:
    """Ends the process if the interpreter does not, because it waits for every non-daemon thread."""
    time.sleep(_LEAVING_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _while_read(arguments: list[str]) -> int:
    """Runs a command; a reader of its output that has left, as in `penstock runs | head -1`, ends it with code 0."""
    try:
        try:
            return _run(arguments)
        finally:
            # At the interpreter's end, an error could not be handled.
            sys.stdout.flush()
    except BrokenPipeError:
        pass
    except SystemExit as end:
        # A console of rich ends the process in place of raising.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and arguments[1:]:
        # `help train` is `train --help`.
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] in ("--version", "-V", "version"):
        import penstock

        print(f"penstock {penstock.__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    # Commands make paths absolute.
    if reason := next(filter(None, map(not_utf8, [*arguments, _working_folder()])), ""):
        return _fail(reason)
    if name not in _COMMANDS:
        if name in _ANSWERS:
            answer = _ANSWERS[name].replace("`penstock ", f"`{program()} ")
            return _fail(f"there is no command {name!r}; {answer}")
        close = similar(name, _COMMANDS)
        meant = f"{question(close)} The commands are" if close else "choose from"
        return _fail(f"unknown command {name!r}; {meant}: {', '.join(_COMMANDS)}")
    try:
        return _execute(name, rest)
    except PenstockError as error:
        return _fail(str(error), exit_code(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # Ctrl-C during an import: Python before 3.12 wraps exceptions from `__set_name__` in a RuntimeError.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        if reason := exhaustion(error):
            # The launcher of a service starts it again, because the machine may recover.
            return _fail(reason, CRASHED if _is_service(arguments) else USAGE_ERROR)
        raise


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def _fail(message: str, code: int = USAGE_ERROR) -> int:
    # The code says enough to a caller that has closed the output.
    with contextlib.suppress(OSError):
        print(f"penstock: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def _help() -> str:
    lines = ["usage: penstock COMMAND [options]", ""]
    lines += [f"  {name:<12} {description}" for name, description in _COMMANDS.items()]
    return "\n".join([*lines, "", "`penstock COMMAND --help` lists a command's options."])


def _is_service(arguments: list[str]) -> bool:
    name, *rest = arguments or [""]
    return name in _SERVICES and (name != "replay" or not rest or rest[0] not in _OF_REPLAY)


def _execute(name: str, arguments: list[str]) -> int:
    """Imports and runs a command: the replay service must not load torch, and `--help` loads nothing."""
    if _is_service([name, *arguments]):
        return _serve(name, arguments)
    module = _OF_REPLAY[arguments[0]] if name == "replay" else name
    with loading():
        command = importlib.import_module(f"penstock.cli.commands.{module}").command
    code: int = command(arguments)
    return code


def _serve(name: str, arguments: list[str]) -> int:
    """Runs a service until it ends; returns its exit code."""
    with loading():
        from penstock.cli.options import parse
    options = parse(f"penstock {name}", _COMMANDS[name], arguments, trains=False)
    if options.config.security.certificate:
        with uncollected():
            from penstock.process import failed_handshakes
        failed_handshakes.watch()
        # The watch has replaced the error output.
        faulthandler.enable()
    with loading():
        service = importlib.import_module(f"penstock.apps.{name}")
    code: int = service.run(options.config)
    return code
