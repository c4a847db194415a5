"""`penstock certificates`: makes the certificates of a run's services, and renews them."""

import argparse
import shlex
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from penstock.cli.one_line_parser import OneLineParser
from penstock.errors import ConfigurationError
from penstock.machine.installation import program
from penstock.runs.folder import RunFolder
from penstock.runs.known import RUNS
from penstock.security.authority import DAYS, Issued, issue, run_of
from penstock.security.roles import ROLES, Role, is_ambiguous, run_name_of


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    given = _parser().parse_args(list(arguments))
    run = _run_folder(given.run)
    folder = RunFolder(run).certificates
    name = given.name or run_of(folder) or run_name_of(run.resolve().name)
    issued = issue(
        folder,
        name,
        days=given.days,
        hosts=_by_role(given.host),
        now=time.time(),
        renew=given.renew,
        new_authority=given.new_authority,
    )
    for each in issued:
        end = datetime.fromtimestamp(each.expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
        print(f"{each.identity.role:<9}  {'new ' if each.is_new else 'kept'}  until {end}  {each.files.certificate}")
    if is_ambiguous(name, run.resolve().name):
        print(
            f"the certificates name the run {name}, which is cut from the folder's name, so that another run may have"
            f" the same; for a name of its own, end the run, remove {shlex.quote(str(folder))} and repeat the command"
        )
    for line in _next_steps(issued, folder):
        print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="penstock certificates",
        description="Make the certificates of a run's services in RUN/certificates, as far as they are missing or have"
        " less than a third of their life left.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run, which need not exist yet")
    parser.add_argument("--name", help="name of the run in the certificates (default: made of its folder's name)")
    parser.add_argument(
        "--days", type=int, default=DAYS, help=f"days for which new certificates are valid (default: {DAYS})"
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="ROLE=HOST",
        help="further DNS name or IP address in the certificate of a role, for security.server_names address;"
        " repeatable, and kept when it is renewed",
    )
    parser.add_argument("--renew", action="store_true", help="make all certificates new")
    parser.add_argument(
        "--new-authority",
        action="store_true",
        help="make a new authority and all certificates, which revokes the former ones; all services of the run need"
        " the new files",
    )
    return parser


def _run_folder(name: str) -> Path:
    """Returns the folder of a run, which may be new: this path, or the run with this name below runs/."""
    path = Path(name)
    return RUNS / name if not path.exists() and (RUNS / name).exists() else path


def _by_role(hosts: Sequence[str]) -> Mapping[Role, Sequence[str]]:
    found = defaultdict[Role, list[str]](list)
    for given in hosts:
        name, _, host = given.partition("=")
        role = next((role for role in ROLES if role == name), None)
        if role is None or not host:
            raise ConfigurationError(
                f"--host must be ROLE=HOST, such as replay=node1.example.org, with a role of {', '.join(ROLES)}; got"
                f" {given!r}"
            )
        found[role].append(host)
    return found


def _next_steps(issued: Sequence[Issued], folder: Path) -> list[str]:
    """Returns the instructions for the user of the certificates."""
    path = shlex.quote(str(issued[0].files.certificate))
    lines = [f"set security.certificate of each service to its file, such as {program()} actor --certificate {path}"]
    lines.append(
        f"on another host, a service needs the folder of its role alone; keep {folder / 'authority-key.pem'} from all,"
        " because it can make any certificate"
    )
    if any(each.is_new for each in issued):
        lines.append("services that are running read renewed files by themselves")
    return lines
