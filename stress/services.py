"""The services of a run, started one by one on loopback, so that each can be killed and started again.

Used by `attacks.py` and `kills.py`. The caller starts the actors.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from penstock.replay.store.description import DESCRIPTION_FILE
from penstock.runs.folder import LEARNER, RunFolder, of_service, replay_services
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from tests.support.machine.timing import wait_for_run
from tests.support.services.certificates import certificates_of
from tests.support.services.ports import free_ports
from tests.support.services.processes import PENSTOCK, WITH_HELPERS, Command

HOST = "127.0.0.1"
EVALUATOR = "evaluator"
_TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a run.

    Attributes:
        name: Name in tables.
        shards: Replay services.
        ranks: Ranks of the learner, which torchrun starts if there are several.
        certified: Whether the services have certificates.
        options: Further options of all commands.
    """

    name: str
    shards: int = 1
    ranks: int = 1
    certified: bool = False
    options: tuple[str, ...] = ()


class Services:
    """Replay services, a learner and an evaluator. A context, which ends all of them.

    Attributes:
        folder: Folder of the run.
        temporary: Folder of the services' temporary files.
        addresses: host:port of the learner and of each replay service, by name.
        metrics: The same of their metrics.
        running: The processes, by name.
    """

    def __init__(self, root: Path, form: Form, *options: str) -> None:
        """Chooses ports and makes certificates; starts nothing."""
        self.form, self._root, self._options = form, root, (*form.options, *options)
        self.folder, self.temporary = RunFolder(root / "run"), root / "tmp"
        self.temporary.mkdir(parents=True)
        self.replays = replay_services(form.shards)
        names = [LEARNER, *self.replays]
        ports = [f"{HOST}:{port}" for port in free_ports(2 * len(names))]
        self.addresses = dict(zip(names, ports, strict=False))
        self.metrics = dict(zip(names, ports[len(names) :], strict=True))
        self._files = certificates_of(root / "certificates") if form.certified else {}
        self.running: dict[str, Command] = {}

    def __enter__(self) -> "Services":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for command in self.running.values():
            command.__exit__(kind, error, trace)

    def store(self, name: str) -> Path:
        """Returns the folder of a replay service's store."""
        return of_service(self._root / "store", name, self.form.shards)

    def has_schema(self) -> bool:
        """Returns whether every store has received the schema of its first actor."""
        return all((self.store(name) / DESCRIPTION_FILE).exists() for name in self.replays)

    def files(self, role: Role) -> Files | None:
        """Returns the certificate of a role; None without certificates."""
        return self._files.get(role)

    def credentials(self, role: Role) -> Credentials | None:
        """Returns the credentials of a role's clients; None without certificates."""
        return Credentials(self._files[role], role) if self._files else None

    def start(self, name: str) -> Command:
        """Starts a service: one of `addresses`, the evaluator, or an actor of a name of the caller's choice."""
        kind: Role = "replay" if name in self.replays else "learner" if name == LEARNER else "actor"
        kind = "evaluator" if name == EVALUATOR else kind
        words = [*self._options, *self._own(name, kind)]
        files = self.files(kind)
        words += [f"--security.certificate={files.certificate}"] if files is not None else []
        environment = {**WITH_HELPERS, "TMPDIR": str(self.temporary)}
        self.running[name] = Command(kind, *words, program=self._program(kind), environment=environment)
        return self.running[name]

    def _own(self, name: str, kind: Role) -> Sequence[str]:
        """Returns the options that this service alone has."""
        if kind in ("replay", "learner"):
            port = self.metrics[name].rpartition(":")[2]
            listening = (f"--{kind}.listen={self.addresses[name]}", f"--{kind}.metrics-port={port}")
            if kind == "replay":
                return *listening, f"--replay.folder={self.store(name)}"
            replays = ",".join(self.addresses[each] for each in self.replays)
            return *listening, f"--learner.replay-addresses={replays}", f"--run-dir={self.folder.root}"
        section = "evaluation" if kind == "evaluator" else kind
        learner = f"--{section}.learner-address={self.addresses[LEARNER]}"
        return learner, f"--{section}.listen={HOST}:0", f"--{section}.metrics-port=0"

    def _program(self, kind: str) -> Sequence[str]:
        if kind != LEARNER or self.form.ranks == 1:
            return (PENSTOCK,)
        return (
            _TORCHRUN, "--standalone", f"--nproc-per-node={self.form.ranks}", "--max-restarts=1000", "-m", "penstock",
        )  # fmt: skip

    def kill(self, name: str, rank: int = 0) -> float:
        """Sends SIGKILL to a service, or to one rank of a learner, and returns when (`time.monotonic`) it had ended.

        A killed service is started again; torchrun starts a killed rank again. Raises `AssertionError` if the service
        had already ended.
        """
        command = self.running[name]
        assert command.process.poll() is None, f"{name} ended by itself:\n{command.stderr[-2000:]}"
        if name == LEARNER and self.form.ranks > 1:
            process = psutil.Process(self.ranks()[rank])
            process.kill()
            wait_for_run(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "the rank's end")
            return time.monotonic()
        command.kill()
        command.wait()
        ended = time.monotonic()
        # The services have no children, so nothing of it is left.
        left = command.left_behind()
        assert not left, f"{name} left {left}"
        command.__exit__(None, None, None)
        self.start(name)
        return ended

    def ranks(self) -> dict[int, int]:
        """Returns the process ids of the ranks of the learner that are alive, by rank."""
        found = {}
        for process in self.running[LEARNER].family():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                variables = process.environ()
                if "TORCHELASTIC_RUN_ID" in variables:
                    found[int(variables["RANK"])] = process.pid
        return found

    def stop(self, name: str, timeout_s: float) -> str:
        """Ends a service in order; returns a fault, or an empty text."""
        command = self.running.pop(name)
        with command:
            command.terminate()
            try:
                command.wait(timeout_s)
            except AssertionError:
                return f"{name} had not ended {timeout_s:.0f} s after SIGTERM"
            left = command.left_behind()
            return f"{name} left {left}" if left else ""

    def leftovers(self) -> list[str]:
        """Returns temporary files and folders of sockets that ended services have left."""
        temporary = [path for path in self.temporary.rglob("*") if not path.is_dir()]
        # The temporary file of a durable write has the name of its target, after a dot.
        partial = [path for path in self._root.rglob(".*") if self.temporary not in path.parents]
        sockets = list(self._root.rglob("sockets-*"))
        return [str(path.relative_to(self._root)) for path in (*temporary, *partial, *sockets)]
