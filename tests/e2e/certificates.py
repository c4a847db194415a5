"""Certificates of the stack: each service has its own alone, operators have theirs, and all can be renewed in place."""

import re
from functools import partial

from tests.e2e.progress import SERVICES
from tests.e2e.report import Report
from tests.e2e.stack import Container, Failure, Stack, command
from tests.support.machine.timing import wait_in_drill

_FOLDER = "/etc/penstock"
_FILES = "authority.pem certificate.pem key.pem"
_FIND_KEYS = "find / -path /proc -prune -o -name '*key.pem' -print 2>/dev/null || true"
_STRANGER = """
import sys
from penstock.rpc.health import is_serving
sys.exit(is_serving(sys.argv[1], 5.0))
"""
"""Ends with 0 if a client without a certificate gets no answer from a service."""


def check_certificates(stack: Stack, report: Report) -> None:
    """Checks what each service sees, what strangers and operators reach, and a renewal while the run trains."""
    report.begin("certificates")
    for service in SERVICES:
        report.attempt(f"{service}: its certificate, and no other key", "yes", partial(_own, stack.one(service)))
    for service, port in (("replay", 7431), ("learner", 7432)):
        what = f"a client without a certificate, in the network of the services: {service}"
        report.attempt(what, "no answer", partial(_refused, stack, f"{service}:{port}"))
    report.attempt("`docker compose run --rm operator status`", "the status", partial(_status, stack))
    taken = partial(_operator, stack, "replay", "snapshot", "drill")
    report.attempt("`docker compose run --rm operator replay snapshot drill`", "a snapshot", taken)
    report.attempt(
        "renewal while it trains", "no process ends, every service has the new one", partial(_renewed, stack)
    )


def _own(container: Container) -> str:
    """Returns yes if a service sees its own files alone. Raises `Failure` if it sees another service's."""
    files = command("docker", "exec", container.id, "ls", _FOLDER).split()
    if " ".join(files) != _FILES:
        raise Failure(f"{_FOLDER} has {files}")
    keys = command("docker", "exec", container.id, "sh", "-c", _FIND_KEYS).split()
    if keys != [f"{_FOLDER}/key.pem"]:
        raise Failure(f"it finds the keys {keys}")
    try:
        command("docker", "exec", container.id, "touch", f"{_FOLDER}/touched")
    except Failure:
        return "yes"
    raise Failure("it can change its certificate")


def _refused(stack: Stack, address: str) -> str:
    run = ("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint=python", "operator", "-c", _STRANGER, address)
    stack.compose(*run)
    return "no answer"


def _status(stack: Stack) -> str:
    text = _operator(stack, "status")
    if not re.search(r"[1-9][\d,]* steps", text):
        raise Failure(f"no steps in {text}")
    return text.splitlines()[0]


def _operator(stack: Stack, *words: str) -> str:
    return stack.compose("run", "--rm", "--no-deps", "--no-TTY", "operator", *words)


def _renewed(stack: Stack) -> str:
    before = {service: stack.one(service) for service in SERVICES}
    stack.compose("run", "--rm", "--no-TTY", "certificates", "certificates", "/var/lib/penstock", "--renew")
    for service in SERVICES:
        wait_in_drill(partial(_has_renewed, stack, service), f"{service} to read the new certificate")
    ended = [service for service, container in before.items() if stack.one(service) != container]
    if ended:
        raise Failure(f"{', '.join(ended)} ended")
    return ", ".join(SERVICES)


def _has_renewed(stack: Stack, service: str) -> bool:
    return bool(stack.events(service, "certificate renewed"))
