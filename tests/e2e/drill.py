"""`make e2e`: runs the stack of docker-compose.yml as its users do, kills, pauses and restarts it, and reports.

`make e2e ARGS=--short` starts and scales it, kills each service once, and stops it.

Needs Docker Engine with compose v2 and buildx on this Linux machine. It uses no GPU, and does not pull Grafana's image.
Writes build/e2e/report.md. If a requirement was missed, it also writes the services' logs there and exits with 1.
"""

import argparse
import contextlib
import json
import re
import shutil
import signal
import sys
import time
from collections import Counter
from functools import partial

from tests.e2e.alerts import Alert
from tests.e2e.baselines import Baseline, compare
from tests.e2e.certificates import check_certificates
from tests.e2e.health_checks import check_cost
from tests.e2e.images import IMAGES, TAG, bare_start_s, look_inside
from tests.e2e.panels import Prometheus, missing_at_last, required
from tests.e2e.progress import SERVICES, Progress
from tests.e2e.recovery import ACTORS, PAUSED_S, Recovery
from tests.e2e.report import Report
from tests.e2e.scaling import scale
from tests.e2e.stack import ROOT, Failure, Stack, command
from tests.e2e.stopping import stop
from tests.e2e.versions import VersionWatch
from tests.support.machine.timing import DRILL_PATIENCE_S, Bound, wait_in_drill
from tests.support.training import equal_run

FILES = ("docker-compose.yml", "compose.cpu.yaml", "tests/e2e/compose.yaml")
CONFIGURATIONS = (
    ("docker-compose.yml",),
    ("docker-compose.yml", "compose.cpu.yaml"),
    ("docker-compose.yml", "compose.admin.yaml"),
    ("docker-compose.yml", "compose.cpu.yaml", "compose.admin.yaml"),
    ("docker-compose.yml", "compose.alertmanager.yaml"),
    FILES,
)
PROJECT = "penstock-e2e"
RUN = "/var/lib/penstock/runs/cartpole"
FOLDER = ROOT / "build" / "e2e"
ENVIRONMENT = {"PENSTOCK_TAG": TAG, "PENSTOCK_ACTORS": "1", "PROMETHEUS_PORT": "0"}
"""Separate images, and a free port for Prometheus."""

UP_MULTIPLE = 3.0
"""Largest ratio of `up` until the first gradient to the bare starts of all four services in sequence.

On two cores both took about as long: all four start at once, and each does more than import.
"""
ALL_MULTIPLE = 40.0
"""Largest ratio of the whole drill to one undisturbed start of each service.

The drill makes each start 8 times, scales, and stops.
"""
LEARNT_STEPS = 300_000
"""Environment steps after which CartPole's preset has learnt: three times the steps of its normal run."""


class Drill:
    """All steps of the drill, in order."""

    def __init__(self, stack: Stack, report: Report) -> None:
        self._stack, self._report = stack, report
        self._progress, self._recovery = Progress(stack), Recovery(stack, report)

    def run(self) -> None:
        """Runs all steps. Raises `Failure`, or `AssertionError` of a wait, if the rest would be pointless."""
        self.check_files()
        self.build()
        self.equal()
        built_s = self._report.seconds
        bare = Baseline(self._all_bare_s)
        bare.measure()
        compare(
            self._report, "from `up` to the first gradient; four bare starts", self.start, bare, multiple=UP_MULTIPLE
        )
        versions = VersionWatch(self._stack)
        try:
            scale(self._stack, self._report, self._recovery)
            self.check_prometheus()
            check_certificates(self._stack, self._report)
            check_cost(self._stack, self._report)
            for service in SERVICES:
                self._recovery.check_start(service)
                self._recovery.kill_process(service)
                self._recovery.kill_container(service)
            self._recovery.kill_replay_at_rest()
            for service in SERVICES:
                self._recovery.pause(service)
            alert_s = self.alert()
            bare.measure()
            what = "from `up` to the first gradient, resumed; four bare starts"
            compare(self._report, what, self.restart, bare, multiple=UP_MULTIPLE)
        finally:
            versions.end()
        self._report.check(
            "policy versions never decrease",
            not versions.wrong and versions.looks > 0,
            "; ".join(versions.wrong) or f"up to {versions.highest}, observed {versions.looks} times",
            "yes",
        )
        self.conclude()
        each_s = sum(starts.recent for starts in self._recovery.starts.values())
        whole = Bound(ALL_MULTIPLE, each_s, len(SERVICES) * PAUSED_S + alert_s)
        what = "the whole drill without the images; one undisturbed start of each service"
        self._report.within(what, [self._report.seconds - built_s], whole)

    def run_short(self) -> None:
        """Builds the images of a host without a GPU, starts the stack, scales it, kills each service, and ends it."""
        self.check_files()
        self._report.begin("building the image")
        self._stack.compose("--progress=plain", "build")
        self.start()
        scale(self._stack, self._report, self._recovery)
        for service in SERVICES:
            self._recovery.kill_container(service)
        self._report.begin("docker compose stop")
        stop(self._stack, self._report)

    def check_files(self) -> None:
        """Checks that compose accepts all combinations of files."""
        self._report.begin("the files of docker compose")
        environment = {"GRAFANA_PASSWORD_FILE": "/dev/null", "ALERT_WEBHOOK_FILE": "/dev/null"}
        for files in CONFIGURATIONS:
            output = Stack("penstock", files, environment).compose("config", "--quiet", with_errors=True)
            self._report.check(
                f"`docker compose config` of {' + '.join(files)}", not output, output or "clean", "clean"
            )

    def build(self) -> None:
        """Builds both images, and checks what is in them."""
        self._report.begin("building the images")
        started = time.monotonic()
        # Also the CUDA image, although it can't be run here.
        printed = Stack("penstock", FILES[:1], ENVIRONMENT).compose(
            "--progress=plain", "build", with_errors=True
        ) + self._stack.compose("--progress=plain", "build", with_errors=True)
        self._report.note("both images are built", f"{time.monotonic() - started:.0f} s")
        written = Counter(re.findall(rf"naming to \S*?(penstock-\w+):{TAG} ", printed))
        # The second command builds the CPU image again, from the cache.
        self._report.check(
            "images written by `docker compose build`, with a GPU and without",
            written == {"penstock-learner": 1, "penstock-actor": 2},
            ", ".join(f"{count} x {image}" for image, count in sorted(written.items())) or "none",
            "each one once by each command",
        )
        for image in IMAGES:
            what, required = f"{image}: user, root file system, tools", "uid 10001, read-only, none"
            self._report.attempt(what, required, partial(look_inside, image))

    def equal(self) -> None:
        """Compares the best checkpoint of a run whose steps are determined with that of `penstock train`."""
        self._report.begin("degree 0, one actor and one seed: as `penstock train`")
        stack = Stack(f"{PROJECT}-equal", FILES[:2], {**ENVIRONMENT, **equal_run.variables()})
        try:
            stack.compose("up", "--detach", "--no-build", *SERVICES)
            wait_in_drill(lambda: not any(each.address for each in stack.containers("learner")), "the end of the run")
            folder = FOLDER / "equal"
            stack.compose("cp", f"learner:{RUN}", str(folder))
        finally:
            stack.compose("down", "--volumes")
        found, expected = equal_run.digest(folder), equal_run.digest_here()
        self._report.check("SHA-256 of best.safetensors", found == expected, found[:16], expected[:16])

    def start(self) -> float:
        """Starts the stack without any state; returns the seconds until the first gradient."""
        self._report.begin("docker compose up")
        self._stack.compose("down", "--volumes")
        seconds = self._up()
        wait_in_drill(
            lambda: all(container.ready for service in SERVICES for container in self._stack.containers(service)),
            "every service to be ready",
        )
        return seconds

    def check_prometheus(self) -> None:
        """Queries Prometheus' HTTP API for all targets, panels and rules."""
        self._report.begin("what Prometheus shows")
        prometheus = Prometheus(self._stack.prometheus())
        lines, queries = missing_at_last(prometheus, gpu=False, patience_s=DRILL_PATIENCE_S), len(required(gpu=False))
        self._report.check(
            "targets, rules, and the queries of all panels except the GPU's",
            not lines,
            "; ".join(lines) or f"all up, all evaluate, {queries} of {queries} have data",
            "all",
        )
        replicas = len(SERVICES) - 1 + ACTORS
        wait_in_drill(lambda: prometheus.answering() == replicas, f"Prometheus to find {replicas} replicas by DNS")
        self._report.note("replicas found by DNS, all up", str(replicas))

    def alert(self) -> float:
        """Lets one alert fire and clear; returns the seconds of Prometheus' own intervals."""
        self._report.begin("an alert: the evaluator is stopped until it fires")
        alert = Alert(Prometheus(self._stack.prometheus()), "PenstockServiceDown", "evaluator")
        starts = self._recovery.starts["evaluator"]
        self._stack.compose("stop", "evaluator")
        fires = Bound(2.0, starts.recent, alert.fires_after_s)
        self._report.within(
            f"from the stop to {alert.name}; undisturbed start", [alert.seconds_until(firing=True)], fires
        )
        self._stack.up(actors=ACTORS)
        clears = Bound(2.0, starts.recent, alert.clears_after_s)
        self._report.within("from `up` until it clears; undisturbed start", [alert.seconds_until(firing=False)], clears)
        return fires.fixed_s + clears.fixed_s

    def restart(self) -> float:
        """Stops and starts the whole project; returns the seconds from `up` until the first gradient."""
        self._report.begin("docker compose down, up")
        steps_before = self._environment_steps()
        stored = self._progress.stored()
        stop(self._stack, self._report)
        self._stack.compose("down")
        seconds = self._up()
        resumed = self._progress.last_event("learner", "run resumed")
        self._report.check(
            "the learner's log says that the run is resumed",
            resumed["env_steps"] > 0 and not resumed["changed_settings"],
            f"from {resumed['env_steps']:,} steps",
            "yes",
        )
        found, steps = self._progress.last_event("replay", "store recovered"), self._environment_steps()
        self._recovery.check_checkpoint()
        self._report.check(
            "environment steps trained",
            steps >= steps_before > 0,
            f"{steps:,.0f}",
            f"{steps_before:,.0f} or more",
        )
        self._report.check(
            "segments recovered by the replay service",
            found["segments"] >= stored,
            f"{found['segments']:,} segments",
            f"{stored:,.0f} or more",
        )
        return seconds

    def conclude(self) -> None:
        """Checks the run's folder with the commands of a user."""
        self._report.begin("the outcome of the run")
        wait_in_drill(lambda: self._environment_steps() >= LEARNT_STEPS, f"{LEARNT_STEPS:,} environment steps")
        self._stack.compose("stop", "learner")
        self._report.attempt(
            f"`docker compose run --rm evaluator evaluate {RUN}`",
            "yes",
            partial(self._stack.compose, "run", "--rm", "--no-deps", "evaluator", "evaluate", RUN),
        )
        folder = FOLDER / "run"
        self._stack.compose("cp", f"learner:{RUN}", str(folder))
        # The images have no matplotlib.
        self._report.attempt(
            "`penstock plot` of the run's folder, copied to the host",
            "yes",
            partial(command, sys.executable, "-m", "penstock", "plot", str(folder)),
        )
        entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        best = max((entry["return_mean"] for entry in entries if entry["kind"] == "evaluation"), default=0.0)
        self._report.check("best evaluation of the whole run", best >= 475.0, f"{best:.1f}", "475 or more")
        steps = [entry["env_steps"] for entry in entries if entry["kind"] == "training"]
        measured = f"{len(steps):,} records, {steps[-1]:,} steps"
        self._report.check("steps in the journal never decrease", steps == sorted(steps), measured, "yes")

    def _up(self) -> float:
        started = time.monotonic()
        self._stack.up(actors=ACTORS)
        wait_in_drill(lambda: self._progress.trained() > 0, "the first gradient")
        return time.monotonic() - started

    def _all_bare_s(self) -> float:
        return sum(bare_start_s(self._stack, service) for service in SERVICES)

    def _environment_steps(self) -> float:
        return self._progress.answer("learner").sum("penstock_learner_environment_steps")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the stack, kill, pause and restart it, and report.")
    parser.add_argument("--short", action="store_true", help="start, scale, kill each service once, and stop")
    parser.add_argument("--keep", action="store_true", help="leave the stack running")
    arguments = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    stack, report = Stack(PROJECT, FILES, ENVIRONMENT), Report()
    # Like Ctrl-C, so that nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        command("docker", "info")
        drill = Drill(stack, report)
        (drill.run_short if arguments.short else drill.run)()
    except Exception as error:
        reason = str(error) if isinstance(error, (Failure, AssertionError)) else repr(error)
        report.check("the drill completed", False, reason, "yes")
    finally:
        report.write(FOLDER / "report.md")
        if not report.met:
            with contextlib.suppress(Failure):
                (FOLDER / "services.log").write_text(stack.compose("logs", "--no-color", "--timestamps"))
        if not arguments.keep:
            with contextlib.suppress(Failure):
                stack.compose("down", "--volumes")
    print(f"\n{report.seconds:5.0f} s  {'all requirements met' if report.met else 'MISSED'}: {FOLDER / 'report.md'}")
    return 0 if report.met else 1


if __name__ == "__main__":
    sys.exit(main())
