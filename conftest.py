"""Settings of all tests: one torch thread, reproducible hypothesis examples, and default signal handlers."""

import os
import signal

import hypothesis
import torch

# A shell starts background jobs with SIGINT ignored, and their child processes inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup starts its command with SIGHUP ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(1)

hypothesis.settings.register_profile("penstock", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("penstock")


def pytest_xdist_auto_num_workers(config: object) -> int:
    """Returns the number of processes for `-n auto`: two more than cores, because many tests wait."""
    return (os.cpu_count() or 1) + 2
