"""Settings that every test shares: one torch thread, the same hypothesis examples in every run, and a Ctrl-C."""

import os
import signal

import hypothesis
import torch

# A shell has what it starts in the background ignore Ctrl-C, and what that starts in turn.
signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup has what it starts ignore the end of its terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(1)

hypothesis.settings.register_profile("penstock", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("penstock")


def pytest_xdist_auto_num_workers(config: object) -> int:
    """Processes for `-n auto`: two more than there are cores, because many tests wait."""
    return (os.cpu_count() or 1) + 2
