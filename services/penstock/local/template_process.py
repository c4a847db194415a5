"""The template process: imports the services' modules and forks a service per request.

Requests and replies are JSON messages on the Unix socket whose descriptor is the first argument. The second argument is
padding, which a forked service overwrites with its own command line.

    {"loading": service}              the imports of this service begin
    {"compiling": service}            functions of this service are compiled, which the next start loads from a cache
    {"ready": true}                   the imports are done
    {"unusable": reason}              this system lacks what the template needs
    {"arguments": [...], "variables": {...}, "log": ...}
                                      forks a service; comes with descriptors for standard input, for standard output
                                      and, where the system has one, of the log's block of memory (`process.output`)
    {"reap": pid}                     reaps a service that has ended
    {"started": pid}                  reply of a new service, which leads its own session and process group; -1: the
                                      system refused a process
    {"ended": pid, "code": ...}       a service has ended; its process id is not reused before it is reaped

The process ends when the other end of the socket is closed. Its services do not.
"""

import atexit
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from penstock.machine.module_imports import uncollected
from penstock.process.output import LOG_VARIABLE

assert sys.platform == "linux"  # see `local.template`; mypy also checks the package for macOS

_MODULES = {
    "replay": ("apps.replay",),
    "learner": ("apps.learner",),
    "actor": ("apps.actor",),
    "evaluator": ("apps.evaluator", "cli.options", "cli.main"),
}
"""Modules by service, in the order of their imports; each service uses those before its own as well."""

_LARGEST_MESSAGE = 65_536
_NONE = -1
_ARGUMENTS_BEGIN = 45
"""Index of `arg_start` among the fields of /proc/self/stat after the command name; `arg_end` follows (proc(5))."""


def main() -> None:
    """Serves requests in the template; in a forked service, runs the service and exits with its code."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    show_as([*sys.orig_argv[: sys.orig_argv.index(sys.argv[1])]])
    try:
        # Kernels before 5.3, and filters of system calls in old containers, do not have it.
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        control.send(json.dumps({"unusable": f"pidfd_open: {error}"}).encode())
        return
    with uncollected():
        _import_all(control)
    control.send(json.dumps({"ready": True}).encode())
    arguments = _Template(control).serve()
    if arguments is not None:
        try:
            importlib.import_module("penstock.cli.main").main(arguments)
        except SystemExit as end:
            if isinstance(end.code, int):
                end_now(end.code)
            raise


def end_now(code: int) -> NoReturn:
    """Ends the process as the interpreter does, without freeing the imported modules.

    That would write to all memory that it shares with the template, and so copy it: 0.4 s of processor time.
    """
    # As in the forked processes of multiprocessing: first non-daemon threads, then exit handlers.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def _import_all(control: socket.socket) -> None:
    """Imports the modules of all services, and reports whose are imported or compiled.

    It sends few messages, because they are not read while the environment is checked.
    """
    event: Any = importlib.import_module("numba.core.event")
    name, compiled = "", ""

    class Compilation(event.Listener):  # type: ignore[misc]
        def on_start(self, started: object) -> None:
            nonlocal compiled
            if compiled != name:
                compiled = name
                control.send(json.dumps({"compiling": name}).encode())

        def on_end(self, ended: object) -> None: ...

    # Numba reports the functions that it compiles, but not those in its cache.
    with event.install_listener("numba:compile", Compilation()):
        for name, modules in _MODULES.items():
            control.send(json.dumps({"loading": name}).encode())
            for module in modules:
                importlib.import_module(f"penstock.{module}")


class _Template:
    def __init__(self, control: socket.socket) -> None:
        self._control, self._selector = control, selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """Serves requests; returns None after the launcher's end, or a forked service's arguments."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._report(key.fd, key.data)
                    continue
                data, descriptors, _, _ = socket.recv_fds(self._control, _LARGEST_MESSAGE, 3)
                if not data:
                    return None
                request = json.loads(data)
                if "reap" in request:
                    os.waitpid(request["reap"], 0)
                elif self._fork(descriptors) == 0:
                    return self._become(request, descriptors)

    def _fork(self, descriptors: list[int]) -> int:
        """Returns 0 in the new process; in the template its id, or -1 if the system refuses one, and says so."""
        try:
            pid = os.fork()
        except OSError:
            self._control.send(json.dumps({"started": _NONE}).encode())
            pid = _NONE
        if pid != 0:
            for descriptor in descriptors:
                os.close(descriptor)
        if pid > 0:
            self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        return pid

    def _report(self, descriptor: int, pid: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self._control.send(json.dumps({"ended": pid, "code": code}).encode())

    def _become(self, request: dict[str, Any], descriptors: list[int]) -> list[str]:
        os.setsid()
        for key in [*self._selector.get_map().values()]:
            if key.fileobj is not self._control:
                os.close(key.fd)
        self._selector.close()
        standard_input, output, *memory = descriptors
        for target, source in enumerate((standard_input, output, output)):
            os.dup2(source, target)
        os.close(standard_input)
        os.close(output)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.environ.update(request["variables"])
        if memory:
            os.environ[LOG_VARIABLE] = f"{memory[0]}:{request['log']}"
        arguments: list[str] = request["arguments"]
        sys.argv = ["penstock", *arguments]
        show_as([sys.executable, "-Pm", "penstock", *arguments])
        self._control.send(json.dumps({"started": os.getpid()}).encode())
        self._control.close()
        return arguments


def show_as(command: list[str]) -> None:
    """Makes `ps` show this command line, cut to the space of the one that the process was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_BEGIN + 1])
    # If the last byte is not zero, the kernel assumes that the title continues in the environment.
    shown = "\0".join(command).encode()[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
