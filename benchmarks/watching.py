"""`make bench-watching`: the pace of a run that is watched, beside one that is not.

Both are `penstock train --preset pendulum`. The watched one films every hundredth evaluation, sends its records to W&B
offline, and its page, from `penstock report --serve`, is read every few seconds. Both write event files. They take
turns; each pace is over the last nine tenths of a run. One run varies by 5%, so the ratio is a mean of logarithms
over many rounds, with Student's t interval. The result is build/bench/watching.json.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import numpy as np

from penstock.comparing.statistics import t_interval
from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "watching.json"
FORMS = {
    "plain": (),
    "watched": ("--evaluation.film-every=100", "--tracker=wandb"),
}
PENSTOCK = (sys.executable, "-m", "penstock")
REPORT_EVERY_S = 5.0


def pace(form: str, steps: int, seed: int) -> tuple[float, int]:
    """Trains, and returns the environment steps per second after the first tenth of the run, and the pages read."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = Path(folder, "run")
        command = [*PENSTOCK, "train", "--preset=pendulum", f"--dir={run}", *FORMS[form]]
        command += [f"--total-steps={steps}", f"--seed={seed}"]
        environment = {**os.environ, "WANDB_MODE": "offline"}
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        stack.enter_context(training)
        journal = run / "metrics.jsonl"
        while not (journal.exists() and b"\n" in journal.read_bytes()) and training.poll() is None:
            time.sleep(0.1)
        pages = _read_pages(run, training) if form == "watched" else 0
        if code := training.wait():
            raise SystemExit(f"the run ended with code {code}")
        if form == "watched" and not (run / "videos").is_dir():
            raise SystemExit("the run was not filmed")
        lines = map(json.loads, journal.read_text().splitlines())
        records = [each for each in lines if each["kind"] == "training"]
    first = next(each for each in records if each["progress_share"] >= 0.1)
    last = records[-1]
    return (last["env_steps"] - first["env_steps"]) / (last["training_s"] - first["training_s"]), pages


def _read_pages(run: Path, training: "subprocess.Popen[bytes]") -> int:
    """Reads the page of a run until the run ends; returns how often."""
    pages = 0
    with subprocess.Popen(
        ["nice", *PENSTOCK, "report", "--serve", str(run)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        address = next(found for line in server.stdout if (found := re.search(r"http://\S+", line)))[0]
        while training.poll() is None:
            with urllib.request.urlopen(address, timeout=30.0) as page:
                pages += bool(page.read())
            time.sleep(REPORT_EVERY_S)
        server.terminate()  # A command in the background of a shell ignores SIGINT.
    return pages


def main() -> int:
    """Measures and prints both forms, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4_000_000)
    arguments = parser.parse_args()
    origin, found = of_this_run(), defaultdict[str, list[float]](list)
    for number in range(arguments.rounds):
        # The second of a pair may find a warmer machine.
        for form in list(FORMS)[:: 1 if number % 2 else -1]:
            rate, pages = pace(form, arguments.steps, number)
            found[form].append(rate)
            print(f"round {number + 1}, {form}: {rate:,.0f} steps/s, {pages} pages read", flush=True)
    ratios = [watched / plain for watched, plain in zip(found["watched"], found["plain"], strict=True)]
    ratio = t_interval(np.log(ratios)).exponential()
    print(f"watched over plain: {ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] ({len(ratios)} rounds)")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    settings = {"rounds": arguments.rounds, "steps": arguments.steps}
    write_json(
        OUTPUT, {"provenance": origin, **settings, "steps_per_s": found, "ratios": ratios, "ratio": asdict(ratio)}
    )
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
