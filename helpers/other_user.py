"""What another user of this host can do: a process that has become nobody tries it. It needs root."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

NOBODY = 65_534
_SCRIPT = f"""
import json, os, socket, sys

paths, addresses = json.load(sys.stdin)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})

def succeeds(action):
    try:
        action()
    except OSError:
        return False
    return True

def connect(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)

print(json.dumps([
    *(
        path
        for path in paths
        if succeeds(lambda: os.listdir(path))
        or succeeds(lambda: open(path, "rb").close())
        or succeeds(lambda: open(path, "ab").close())
    ),
    *(address for address in addresses if succeeds(lambda: connect(address))),
]))
"""


def open_to_others(paths: Iterable[Path], sockets: Iterable[Path] = ()) -> list[str]:
    """Returns those of these files, folders and sockets that another user can read, change or connect to.

    The test is skipped without root.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    request = json.dumps([[str(path) for path in paths], [str(path) for path in sockets]])
    result = subprocess.run(
        [sys.executable, "-ISc", _SCRIPT], input=request, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(result.stdout)
    return found
