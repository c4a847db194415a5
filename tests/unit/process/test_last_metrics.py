"""A service that ends lets Prometheus read its last values."""

import subprocess
import sys

from tests.support.machine.timing import PATIENCE_S

SCRIPT = """
import threading, time, urllib.request
from penstock.config import Config
from penstock.process.service import Service
from penstock.telemetry import metrics

seen = []

def scrape(address):
    with urllib.request.urlopen(f"http://{{address}}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    seen.append(next(line for line in lines if line.startswith("penstock_learner_run_finished ")))

with Service("learner", Config(learner={{"listen": "127.0.0.1:0", "metrics_port": "auto"}})) as service:
    address = service.location.metrics_address
    for _ in range({before}):
        scrape(address)
        time.sleep({interval_s})
    metrics.LEARNER_RUN_FINISHED.set(1)
    following = threading.Timer({interval_s}, scrape, [address])
    following.start()
    service.await_scrape()
    following.cancel()
    following.join()
print(seen[-1] if seen else "never read")
"""


def last_value(*, interval_s: float, before: int) -> str:
    """Returns the last line that a scraper reads of a process, which ends its run after that many scrapes."""
    script = SCRIPT.format(interval_s=interval_s, before=before)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return ended.stdout.strip()


def test_the_last_values_are_read_by_a_regular_scraper() -> None:
    # The service waits for twice the interval, so a busy machine may delay the last scrape by five seconds.
    assert last_value(interval_s=5.0, before=2) == "penstock_learner_run_finished 1.0"


def test_a_service_that_nothing_reads_ends_at_once() -> None:
    assert last_value(interval_s=5.0, before=0) == "never read"
