"""`penstock status`: how a run goes."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from penstock.cli.coordination import sections
from penstock.cli.display import describe, describe_variants
from penstock.cli.one_line_parser import OneLineParser
from penstock.errors import ConfigurationError
from penstock.rpc.loop import LoopThread
from penstock.rpc.status_client import StatusClient
from penstock.run_folder import RunFolder

_TIMEOUT_S = 5.0


def command(arguments: Sequence[str]) -> int:
    """Runs `penstock status`; its exit code."""
    parser = OneLineParser(prog="penstock status", description="Show how a run goes.")
    parser.add_argument("run", help="the folder of a run on this machine, or host:port of its learner")
    named = parser.parse_args(list(arguments))
    thread = LoopThread()
    try:
        client = StatusClient(thread, _learner_address(named.run))
        try:
            status = client.get(_TIMEOUT_S)
        finally:
            client.close()
    finally:
        thread.close()
    console = Console(highlight=False)
    for line in [describe(status), *describe_variants(status)]:
        console.print(line, markup=False, soft_wrap=True)
    if status.coordinator is not None:
        console.print(sections(status.coordinator), soft_wrap=True)
    return 0


def _learner_address(run: str) -> str:
    folder = RunFolder(Path(run))
    if folder.services.exists():
        return str(json.loads(folder.services.read_text())["learner"])
    if folder.config.exists():
        raise ConfigurationError(f"the run in {run} is not going on; its result is in {folder.summary}")
    if ":" not in run:
        raise ConfigurationError(f"{run} is neither a run's folder nor host:port of a learner")
    return run
