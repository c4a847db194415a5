"""`penstock health`: checks whether a service is ready.

Containers run it every few seconds, so it imports as little as possible.
"""

from collections.abc import Sequence

from penstock.cli.one_line_parser import OneLineParser
from penstock.errors import NOT_SERVING
from penstock.rpc.health import is_serving, storage_fails

_TIMEOUT_S = 5.0


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns exit code 0 if the service is ready, else 1."""
    parser = OneLineParser(prog="penstock health", description="Check whether a service is ready.")
    parser.add_argument("address", help="host:port of the service")
    named = parser.parse_args(list(arguments))
    serving = is_serving(named.address, _TIMEOUT_S)
    # A failing disk does not stop the service's clients, so it does not change the exit code.
    failing = serving and storage_fails(named.address, _TIMEOUT_S)
    print(("serving" if serving else "not serving") + ("; its disk can't be written" if failing else ""))
    return 0 if serving else NOT_SERVING
