"""Settings of all tests: one torch thread, the same hypothesis examples in every run, and default signal handlers."""

import os
import signal

import hypothesis
import torch

# A shell makes background processes, and their children, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup makes its command ignore the end of the terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(1)

hypothesis.settings.register_profile("penstock", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("penstock")


def pytest_xdist_auto_num_workers(config: object) -> int:
    """Returns the number of processes for `-n auto`: two more than cores, because many tests wait."""
    return (os.cpu_count() or 1) + 2
