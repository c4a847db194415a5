"""Kills the process groups of a run after its launcher has died. It runs as a script.

Reads lines from standard input: `+ GROUP` when a group was started, `- GROUP` when it has ended. The input ends with
the launcher, even if the launcher is killed. The remaining groups then get a grace period and SIGKILL. The script
imports nothing of Penstock, so that it starts in milliseconds.
"""

import os
import signal
import sys
import time


def main() -> None:
    """Reads group ids until the launcher has ended, waits `sys.argv[1]` seconds and kills the remaining groups."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        sign, group = line.split()
        (groups.add if sign == "+" else groups.discard)(int(group))
    if groups:
        time.sleep(float(sys.argv[1]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue


if __name__ == "__main__":
    main()
