"""The message about the end of a run, to a webhook or to a command of the user: `run.on_end`.

The launcher of a run on one machine sends it, or the learner of services that were started individually. It is sent
once for each end, also for one by a fault, but not for a run that was stopped, since that can be resumed. It is sent by
a thread that ends with the process, so that neither a name server nor a command can delay the end for longer than the
bound.
"""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.machine.files import json_of, write_atomically
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import return_text
from penstock.runs.summary import Summary

LONGEST_S = 30.0
"""Seconds after which the end of a run no longer waits for its message."""

_ATTEMPT_S = 10.0
_ANSWER_S = 5.0
_HEADERS = {"User-Agent": "penstock"}
_PLAIN_WORD = re.compile(r"[\w./-]+")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Content of the message: the fields of the JSON object, and the variables PENSTOCK_RUN_NAME and so on of a
    command.

    Attributes:
        name: Name of the run's folder.
        dir: The folder.
        reason: Reason for the end, as in `summary.json`, or "fault".
        error: The error's message; empty without a fault.
        exit_code: Exit code of the process that sends it.
        environment: Id of the environment.
        steps: Environment steps trained; None if unknown.
        minutes: Minutes of training; None if unknown.
        return_: Mean return of the final evaluation; None without one.
        best_return: Mean return by which the best checkpoint was chosen; None without one.
        text: All of it in one line, which the webhooks of chat programs show.
    """

    name: str
    dir: str
    reason: str
    error: str = ""
    exit_code: int = 0
    environment: str = ""
    steps: int | None = None
    minutes: float | None = None
    return_: float | None = None
    best_return: float | None = None
    text: str = ""

    @classmethod
    def of_summary(cls, folder: RunFolder, summary: Summary) -> "RunEnd":
        """Returns the end of a run that is done."""
        final, best = summary.evaluation, summary.best_evaluation
        reached = "" if final is None else f", return {return_text(final.return_mean)}"
        return cls(
            name=folder.root.name,
            dir=str(folder.root),
            reason=summary.stopped,
            environment=summary.env_id,
            steps=summary.env_steps,
            minutes=summary.minutes,
            return_=None if final is None else final.return_mean,
            best_return=None if best is None else best.return_mean,
            text=f"Penstock: the run {folder.root.name} ended ({summary.stopped}) after {summary.env_steps:,} steps"
            f"{reached}",
        )

    @classmethod
    def of_fault(cls, folder: RunFolder, error: BaseException, exit_code: int, environment: str) -> "RunEnd":
        """Returns the end of a run by an error."""
        message = " ".join(str(error).split())[:_MOST_CHARACTERS] or type(error).__name__
        return cls(
            name=folder.root.name,
            dir=str(folder.root),
            reason="fault",
            error=message,
            exit_code=exit_code,
            environment=environment,
            steps=folder.newest_checkpoint_steps(),
            text=f"Penstock: the run {folder.root.name} failed: {message}",
        )

    def values(self) -> dict[str, object]:
        """Returns the values by the names in which they are sent."""
        return {name.rstrip("_"): value for name, value in asdict(self).items()}


VARIABLES = {
    field.name: f"PENSTOCK_RUN_{field.name.rstrip('_').upper()}" for field in fields(RunEnd) if field.name != "text"
}
"""Variables of a command by the fields that they have."""


def announce(target: str | None, end: RunEnd, *, longest_s: float = LONGEST_S) -> str:
    """Sends the end of a run once; returns why that failed, in one line, or an empty string.

    It is retried until `longest_s` seconds have passed, and does not raise. An end that the run's folder records as
    sent is not sent again, so that a service that is restarted after each fault sends one message.
    """
    if target is None:
        return ""
    sent, record = RunFolder(Path(end.dir)).end_sent, json_of([end.reason, end.error, end.steps])
    with contextlib.suppress(OSError):
        if sent.read_text() == record:
            return ""
    deadline, failures = time.monotonic() + longest_s, [f"no answer within {longest_s:g} s"]
    done = threading.Event()
    threading.Thread(target=_send, args=(target, end, deadline, failures, done), name="run end", daemon=True).start()
    if not done.wait(longest_s + 1.0):
        return f"run.on_end: the end of the run was not sent to {_shown(target)}: {failures[-1]}"
    if failures[-1]:
        return f"run.on_end: the end of the run was not sent to {_shown(target)}: {failures[-1]}"
    with contextlib.suppress(OSError):
        write_atomically(sent, record.encode())
    return ""


def obstacle(target: str | None) -> str:
    """Returns why the end of a run that begins now would be sent to nobody, in one line, or an empty string.

    A webhook only has to answer, because one that takes POST alone refuses this request. Of a command, the first word
    is looked up, unless the shell has to interpret it.
    """
    if target is None:
        return ""
    if is_url(target):
        answered, failure = _request(urllib.request.Request(target, method="HEAD", headers=_HEADERS), _ANSWER_S)
        reason = "" if answered else failure
    else:
        word = (target.split() or [""])[0]
        search = ["/bin/sh", "-c", 'command -v -- "$0"', word]
        known = subprocess.run(search, env=os.environ.copy(), capture_output=True, check=False)
        reason = f"no command {word!r}" if known.returncode and _PLAIN_WORD.fullmatch(word) else ""
    return f"run.on_end: the end of the run would not be sent to {_shown(target)} now: {reason}" if reason else ""


def is_url(target: str) -> bool:
    """Returns whether the target is a webhook; otherwise it is a command."""
    return target.lower().startswith(("http://", "https://"))


def _send(target: str, end: RunEnd, deadline: float, failures: list[str], done: threading.Event) -> None:
    """Sends until it succeeds or the deadline is near; the last of `failures` is empty after a success."""
    pause = _FIRST_PAUSE_S
    try:
        while True:
            left = deadline - time.monotonic()
            # A command that works for longer than a web server takes to answer would begin its work again.
            failures.append(_post(target, end, min(_ATTEMPT_S, left)) if is_url(target) else _call(target, end, left))
            if not failures[-1] or deadline - time.monotonic() <= pause:
                return
            time.sleep(pause)
            pause = min(2.0 * pause, _LONGEST_PAUSE_S)
    except Exception as error:  # A fault of the message must not change the end of the run.
        failures.append(f"{type(error).__name__}: {error}")
    finally:
        done.set()


def _post(url: str, end: RunEnd, timeout_s: float) -> str:
    headers = _HEADERS | {"Content-Type": "application/json"}
    return _request(urllib.request.Request(url, json_of(end.values()).encode(), headers), timeout_s)[1]


def _request(request: urllib.request.Request, timeout_s: float) -> tuple[bool, str]:
    """Returns whether a server answered, and why it did not accept the request, or an empty string."""
    try:
        # A new opener reads the proxies of the environment as they are now.
        with urllib.request.build_opener().open(request, timeout=timeout_s):
            return True, ""
    except urllib.error.HTTPError as error:
        with error:
            return True, f"it answered {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return False, str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        return False, str(error) or type(error).__name__


def _call(command: str, end: RunEnd, timeout_s: float) -> str:
    values = {variable: getattr(end, name) for name, variable in VARIABLES.items()}
    own = {variable: "" if value is None else str(value) for variable, value in values.items()}
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        env=os.environ | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"the command did not end within {timeout_s:.0f} s"
    lines = said.decode(errors="replace").strip().splitlines()
    return f"exit code {process.returncode}" + (f": {lines[-1]}" if lines else "") if process.returncode else ""


def _shown(target: str) -> str:
    """Returns the target without the part that may be secret: a webhook's path."""
    return target.split("/", 3)[2].rpartition("@")[2] if is_url(target) else target.split()[0]


def read_end(folder: RunFolder) -> RunEnd | None:
    """Returns the end that the summary in a run's folder records; None if it can't be read."""
    with contextlib.suppress(ConfigurationError):
        return RunEnd.of_summary(folder, Summary.read(folder.summary))
    return None
