"""`make e2e`: runs the stack of docker-compose.yml as people do, breaks it as nights do, and says what became of it.

Needs Docker Engine with compose v2 and buildx on this Linux machine; it asks for no GPU, and does not pull Grafana's
image. Writes build/e2e/report.md, and the services' logs beside it where a bound was missed; then it exits with 1.
"""

import argparse
import contextlib
import json
import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.panels import Prometheus, count, missing_at_last
from e2e.report import Report
from e2e.stack import ROOT, Container, Failure, Metrics, Stack, command, look_again
from helpers.processes import wait_for

FILES = ("docker-compose.yml", "compose.cpu.yaml", "tests/e2e/compose.yaml")
CONFIGURATIONS = (
    ("docker-compose.yml",),
    ("docker-compose.yml", "compose.cpu.yaml"),
    ("docker-compose.yml", "compose.admin.yaml"),
    ("docker-compose.yml", "compose.cpu.yaml", "compose.admin.yaml"),
    FILES,
)
SERVICES = ("actor", "replay", "learner", "evaluator")
TAG = "e2e"
IMAGES = ("penstock-actor", "penstock-learner")
RUN = "/var/lib/penstock/runs/cartpole"
FOLDER = ROOT / "build" / "e2e"
ENVIRONMENT = {"PENSTOCK_TAG": TAG, "PENSTOCK_ACTORS": "1", "PROMETHEUS_PORT": "0"}
"""Images of its own; and Prometheus at a port that is free."""

FIRST_GRADIENT_S = 60.0
PROGRESS_S = 10.0
CONTRIBUTION_S = 5.0
PAUSED_S = 30.0
ALL_S = 900.0
HOPELESS_S = 90.0
"""After which nothing is waited for any more."""
LOOK_S = 0.5
REST_S = 3.0

WORK = {
    "actor": "penstock_actor_environment_steps_total",
    "replay": "penstock_replay_inserted_segments_total",
    "learner": "penstock_learner_gradient_steps_total",
    "evaluator": "penstock_evaluator_seconds_total",
}
"""What counts up while a service works."""

IN_IMAGE = """
import os, shutil, sys
from pathlib import Path
site = Path(next(path for path in sys.path if path.endswith("site-packages")))
try:
    Path("/probe").touch()
    written = True
except OSError:
    written = False
print(os.getuid(), written, *(name for name in ("gcc", "cc", "ld", "pytest") if shutil.which(name)), sep=",")
print(*sorted(path.name for path in site.glob("nvidia*") if path.is_dir() and path.suffix != ".dist-info"))
"""


class VersionWatch:
    """Looks at the policy versions of learner and actors all the time."""

    def __init__(self, stack: Stack) -> None:
        self.wrong: list[str] = []
        self.looks, self.highest = 0, 0
        self._stack, self._ending = stack, threading.Event()
        self._of_actors: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._run, name="versions", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Looks no more."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            try:
                self._look()
            except Failure:
                # Containers come and go between two commands.
                continue
            except Exception as error:
                self.wrong.append(f"nobody looked any more, since {error!r}")
                return

    def _look(self) -> None:
        for _, seen in self._answers("learner"):
            # A process that has trained nothing yet has no version.
            if seen.sum("penstock_learner_gradient_steps_total"):
                version = int(seen.sum("penstock_learner_policy_version"))
                if version < self.highest:
                    self.wrong.append(f"the learner went from {self.highest} to {version}")
                self.highest = max(self.highest, version)
                self.looks += 1
        for container, seen in self._answers("actor"):
            key, version = (container.id, container.started_at), int(seen.sum("penstock_actor_policy_version"))
            if version < self._of_actors.get(key, 0):
                self.wrong.append(f"an actor went from {self._of_actors[key]} to {version}")
            self._of_actors[key] = version

    def _answers(self, service: str) -> Iterator[tuple[Container, Metrics]]:
        for container in self._stack.containers(service):
            seen = container.metrics()
            # It may have been another process that answered.
            if seen is not None and look_again(container).started_at == container.started_at:
                yield container, seen


class Drill:
    """All that is done, in order."""

    def __init__(self, stack: Stack, report: Report) -> None:
        self._stack, self._report = stack, report
        self._actors = 1

    def run(self) -> None:
        """Raises `Failure` where there is no point in going on."""
        self.look_at_files()
        self.build()
        self.start()
        versions = VersionWatch(self._stack)
        try:
            self.scale()
            self.look_at_prometheus()
            for service in SERVICES:
                self.kill_process(service)
                self.kill_container(service)
            self.kill_replay_at_rest()
            for service in SERVICES:
                self.pause(service)
            self.alert()
            self.restart()
        finally:
            versions.end()
        self._report.check(
            "policy versions never went back",
            not versions.wrong and versions.looks > 0,
            "; ".join(versions.wrong) or f"up to {versions.highest}, looked at {versions.looks} times",
            "never",
        )
        self.conclude()
        self._report.within("all of it", self._report.seconds, ALL_S)

    def look_at_files(self) -> None:
        """Whether compose accepts all combinations of files."""
        self._report.begin("the files of docker compose")
        environment = {"GRAFANA_PASSWORD_FILE": "/dev/null"}
        for files in CONFIGURATIONS:
            told = Stack("penstock", files, environment).compose("config", "--quiet", with_errors=True)
            self._report.check(f"`docker compose config` of {' + '.join(files)}", not told, told or "clean", "clean")

    def build(self) -> None:
        """Both images, and what is in them."""
        self._report.begin("building the images")
        started = time.monotonic()
        # The CUDA image too, although nothing here can use it.
        Stack("penstock", FILES[:1], ENVIRONMENT).compose("build", "learner")
        self._stack.compose("build")
        self._report.tell("both images are built", f"{time.monotonic() - started:.0f} s")
        for image in IMAGES:
            self._report.attempt(
                f"{image}: user, root file system, tools",
                "uid 10001, read-only, none",
                lambda image=image: _inside(f"{image}:{TAG}", may_have_cuda=image == "penstock-learner"),
            )

    def start(self) -> None:
        """From nothing to the first gradient."""
        self._report.begin("docker compose up")
        started = time.monotonic()
        self._stack.up(actors=self._actors)
        wait_for(lambda: self._trained() > 0, "the first gradient", HOPELESS_S)
        self._report.within("from `up` to the first gradient", time.monotonic() - started, FIRST_GRADIENT_S)
        wait_for(
            lambda: all(container.ready for service in SERVICES for container in self._stack.containers(service)),
            "every service is ready",
            HOPELESS_S,
        )

    def scale(self) -> None:
        """Actors come and go."""
        self._report.begin("actors: 1, 8, 2")
        old = {container.id for container in self._stack.containers("actor")}
        self._scale(8)
        new = [container for container in self._stack.containers("actor") if container.id not in old]
        with ThreadPoolExecutor(len(new)) as pool:
            seconds = list(pool.map(_from_ready_to_contributing, new))
        self._report.check("new actors that contribute", len(seconds) == 7, str(len(seconds)), "7")
        self._report.within("from ready to contributing, the slowest of them", max(seconds), CONTRIBUTION_S)
        before = {container.id: _work_before(container) for container in new}
        wait_for(
            lambda: all(_work_of(container) > before[container.id] for container in new),
            "all 8 actors go on",
            HOPELESS_S,
        )
        wait_for(lambda: self._learner_sum("penstock_learner_actors") == 8, "the learner has 8 actors", HOPELESS_S)
        started = time.monotonic()
        self._scale(2)
        wait_for(lambda: self._learner_sum("penstock_learner_actors") == 2, "the learner has 2 actors", HOPELESS_S)
        trained = self._trained_before()
        wait_for(lambda: self._trained() > trained, "training goes on with 2 actors", HOPELESS_S)
        self._report.tell("from `--scale actor=2` to training with 2", f"{time.monotonic() - started:.1f} s")

    def look_at_prometheus(self) -> None:
        """All targets, panels and rules, by its HTTP API."""
        self._report.begin("what Prometheus shows")
        prometheus = Prometheus(self._stack.prometheus())
        lines, asked = missing_at_last(prometheus, gpu=False, patience_s=HOPELESS_S), count(gpu=False)
        self._report.check(
            "targets, rules, and the queries of all panels but the GPU's",
            not lines,
            "; ".join(lines) or f"all up, all evaluate, {asked} of {asked} have data",
            "all",
        )
        wait_for(lambda: len(self._targets()) == 5, "Prometheus has found 5 replicas by DNS", HOPELESS_S)
        self._report.tell("replicas found by DNS, all up", str(len(self._targets())))

    def kill_process(self, service: str) -> None:
        """As the kernel does when memory runs out: nobody asked for it, so Docker starts it again."""
        self._report.begin(f"{service}: its process is killed")
        self._kill(service, _kill_inside, "from its process's death to progress")

    def kill_container(self, service: str) -> None:
        """As an operator does, who then has to start it again: Docker takes it that it was meant."""

        def kill_and_start(container: Container) -> None:
            command("docker", "kill", container.id)
            self._stack.up(actors=self._actors)

        self._report.begin(f"{service}: docker kill, docker compose up")
        self._kill(service, kill_and_start, "from `docker kill`, then `up`, to progress")

    def _kill(self, service: str, kill: Callable[[Container], None], timed: str) -> None:
        container, stored, started = self._stack.one(service), self._stored(), time.monotonic()
        kill(container)
        self._await_progress(container, math.inf)
        self._report.within(f"{service}: {timed}", time.monotonic() - started, PROGRESS_S)
        if service == "replay":
            self._check_store(stored)
        if service == "learner":
            self._check_checkpoint()

    def kill_replay_at_rest(self) -> None:
        """While the learner is paused all that was sent is acknowledged, and can be counted."""
        self._report.begin("replay: killed while the learner is paused and everything is acknowledged")
        learner, replay = self._stack.one("learner"), self._stack.one("replay")
        trained = self._trained_before()
        command("docker", "pause", learner.id)
        try:
            wait_for(self._is_at_rest, "actors have nothing on its way", HOPELESS_S)
            stored = self._stored()
            with contextlib.suppress(Failure):
                command("docker", "exec", replay.id, "sh", "-c", "kill -9 -1")
            wait_for(lambda: look_again(replay).started_at != replay.started_at, "replay is started again", HOPELESS_S)
            wait_for(lambda: look_again(replay).ready, "replay is ready again", HOPELESS_S)
            found = self._last("replay", "recovered")
        finally:
            command("docker", "unpause", learner.id)
        self._report.check(
            "acknowledged segments that the new process found",
            found["segments"] == stored and found["damaged"] == 0,
            f"{found['segments']:,.0f} of {stored:,.0f}, {found['damaged']} damaged",
            "all",
        )
        wait_for(lambda: self._trained() > trained, "training goes on", HOPELESS_S)

    def pause(self, service: str) -> None:
        """As a machine that swaps, or a network that is gone for half a minute."""
        self._report.begin(f"{service}: docker pause of {PAUSED_S:.0f} s")
        container = self._stack.one(service)
        command("docker", "pause", container.id)
        if service in ("actor", "evaluator"):
            self._check_training_without(service)
        else:
            time.sleep(PAUSED_S)
        started = time.monotonic()
        command("docker", "unpause", container.id)
        self._await_progress(container, _work_before(container))
        self._report.within(f"{service}: from the end of the pause to progress", time.monotonic() - started, PROGRESS_S)

    def alert(self) -> None:
        """One alert fires and clears."""
        self._report.begin("an alert: the evaluator is stopped for more than a minute")
        prometheus = Prometheus(self._stack.prometheus())
        name, job = "PenstockServiceDown", "evaluator"
        self._stack.compose("stop", "evaluator")
        started = time.monotonic()
        wait_for(lambda: (name, job) in _firing(prometheus), f"{name} fires", 2 * HOPELESS_S)
        self._report.tell(f"from the stop to {name}, which waits a minute", f"{time.monotonic() - started:.0f} s")
        self._stack.up(actors=self._actors)
        started = time.monotonic()
        wait_for(lambda: (name, job) not in _firing(prometheus), f"{name} clears", HOPELESS_S)
        self._report.check(
            f"{name} fires and clears", True, f"clear {time.monotonic() - started:.0f} s after `up`", "it does"
        )

    def restart(self) -> None:
        """The whole project."""
        self._report.begin("docker compose down, up")
        before = self._stack.one("learner").metrics()
        stored, started = self._stored(), time.monotonic()
        self._stack.compose("down")
        self._report.tell("down", f"{time.monotonic() - started:.1f} s")
        started = time.monotonic()
        self._stack.up(actors=self._actors)
        wait_for(lambda: self._trained() > 0, "the first gradient", HOPELESS_S)
        self._report.within("from `up` to the first gradient, resumed", time.monotonic() - started, FIRST_GRADIENT_S)
        found = self._last("replay", "recovered")
        steps_before = before.sum("penstock_learner_environment_steps") if before else 0
        steps = self._learner_sum("penstock_learner_environment_steps")
        self._check_checkpoint()
        self._report.check(
            "environment steps trained",
            steps >= steps_before > 0,
            f"{steps:,.0f}",
            f"{steps_before:,.0f}, as before, or more",
        )
        self._report.check(
            "the replay service has what it had",
            found["segments"] >= stored,
            f"{found['segments']:,} segments",
            f"{stored:,.0f} or more",
        )

    def conclude(self) -> None:
        """The run's folder, as one would take it home."""
        self._report.begin("what the run has come to")
        self._stack.compose("stop", "learner")
        for action in ("evaluate", "plot"):
            self._report.attempt(
                f"`docker compose run --rm evaluator {action} {RUN}`",
                "it does",
                lambda action=action: self._stack.compose("run", "--rm", "--no-deps", "evaluator", action, RUN),
            )
        folder = FOLDER / "run"
        self._stack.compose("cp", f"learner:{RUN}", str(folder))
        entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        evaluations = [entry["return_mean"] for entry in entries if entry["kind"] == "evaluation"]
        self._report.check(
            "best evaluation of the run, through all of it",
            max(evaluations, default=0.0) >= 475.0,
            f"{max(evaluations, default=0.0):.1f}",
            "475 or more",
        )
        steps = [entry["env_steps"] for entry in entries if entry["kind"] == "training"]
        self._report.check(
            "the journal never goes back",
            steps == sorted(steps),
            f"{len(steps):,} records, {steps[-1]:,} steps",
            "never",
        )

    def _scale(self, actors: int) -> None:
        self._actors = actors
        self._stack.up(actors=actors)

    def _await_progress(self, container: Container, before: float) -> None:
        """Until a service has done more than `before`, or anything at all as a new process, and the learner trains."""

        def works() -> bool:
            now = look_again(container)
            return _work_of(now) > (before if now.started_at == container.started_at else 0.0)

        wait_for(works, f"{container.service} works again", HOPELESS_S)
        trained = self._trained_before()
        wait_for(lambda: self._trained() > trained, "the learner trains", HOPELESS_S)

    def _check_training_without(self, service: str) -> None:
        """Over the length of a pause, from when whatever was on its way has been trained."""
        time.sleep(PAUSED_S / 2)
        trained = self._trained_before()
        time.sleep(PAUSED_S / 2)
        steps = self._trained_before() - trained
        self._report.check(
            f"gradient steps meanwhile, without the {service}",
            steps > 0,
            f"{steps:,.0f} in {PAUSED_S / 2:.0f} s",
            "some",
        )

    def _check_store(self, stored: float) -> None:
        """`stored` segments were acknowledged a moment before."""
        found = self._last("replay", "recovered")
        self._report.check(
            "acknowledged segments that the new process found",
            found["segments"] >= stored > 0 and found["damaged"] == 0,
            f"{found['segments']:,}, {found['damaged']} damaged",
            f"{stored:,.0f} or more, none",
        )

    def _check_checkpoint(self) -> None:
        """The learner has just been started again."""
        path = self._last("learner", "serving")["resumed_from"]
        self._report.check("the learner goes on from its checkpoint", path != "None", Path(path).name, "it does")

    def _last(self, service: str, event: str) -> dict[str, Any]:
        """The newest entry of this name in a service's log. Raises `Failure` if there is none."""
        events = self._stack.events(service, event)
        if not events:
            raise Failure(f"{service} has not logged {event!r}")
        return events[-1]

    def _is_at_rest(self) -> bool:
        actors = self._stack.containers("actor")
        steps = [_work_of(actor) for actor in actors]
        time.sleep(REST_S)
        seen = [actor.metrics() for actor in actors]
        waiting = sum(each.sum("penstock_actor_unacknowledged_windows") for each in seen if each is not None)
        return None not in seen and waiting == 0 and steps == [_work_of(actor) for actor in actors]

    def _stored(self) -> float:
        seen = self._stack.one("replay").metrics()
        return seen.sum("penstock_replay_segments") if seen else 0.0

    def _trained(self) -> float:
        """Gradient steps of the learner's process; 0 while it does not answer."""
        return _work_of(self._stack.one("learner"))

    def _trained_before(self) -> float:
        """The same, once it answers."""
        return _work_before(self._stack.one("learner"))

    def _learner_sum(self, name: str) -> float:
        seen = self._stack.one("learner").metrics()
        return seen.sum(name) if seen else 0.0

    def _targets(self) -> list[str]:
        """Addresses of services that Prometheus has found and that answer it."""
        targets = Prometheus(self._stack.prometheus()).ask("targets", {"state": "active"})["activeTargets"]
        return [target["labels"]["instance"] for target in targets if target["health"] == "up"]


def _work_of(container: Container) -> float:
    """What its process has done so far; 0 while it does not answer."""
    seen = container.metrics()
    return seen.sum(WORK[container.service]) if seen else 0.0


def _work_before(container: Container) -> float:
    """The same, once it answers."""
    wait_for(lambda: container.metrics() is not None, f"{container.service} answers", HOPELESS_S)
    return _work_of(container)


def _from_ready_to_contributing(container: Container) -> float:
    """Seconds; an actor that is seen to contribute before it is seen to be ready took none."""
    wait_for(lambda: container.ready, "a new actor is ready", HOPELESS_S)
    ready = time.monotonic()
    wait_for(lambda: _work_of(container) > 0, "a new actor contributes", HOPELESS_S)
    return time.monotonic() - ready


def _kill_inside(container: Container) -> None:
    """Kills all that it runs but its init, which then ends, too."""
    # So does the shell that does it.
    with contextlib.suppress(Failure):
        command("docker", "exec", container.id, "sh", "-c", "kill -9 -1")


def _inside(image: str, *, may_have_cuda: bool) -> str:
    """What an image runs as and has. Raises `Failure` if that is not what it should be."""
    user_and_tools, cuda, *_ = _python_in(image, IN_IMAGE).split("\n")
    if user_and_tools != "10001,False" or (cuda and not may_have_cuda):
        raise Failure(f"uid, whether / can be written, tools: {user_and_tools}; CUDA packages: {cuda or 'none'}")
    # As a service of compose is: numba wants to write where its compiled code lies.
    _python_in(image, "import penstock.replay.buffer", "--tmpfs=/tmp")
    return f"uid 10001, read-only, none; CUDA packages: {cuda or 'none'}"


def _python_in(image: str, code: str, *options: str) -> str:
    confined = ("--rm", "--read-only", "--cap-drop=ALL", "--network=none", *options)
    return command("docker", "run", *confined, "--entrypoint=python", image, "-c", code)


def _firing(prometheus: Prometheus) -> set[tuple[str, str]]:
    """Names of alerts, and the jobs that they are about."""
    found = prometheus.ask("query", {"query": 'ALERTS{alertstate="firing"}'})["result"]
    return {(series["metric"]["alertname"], series["metric"].get("job", "")) for series in found}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the stack, break it, and say what became of it.")
    parser.add_argument("--keep", action="store_true", help="leave the stack running")
    arguments = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    stack, report = Stack("penstock-e2e", FILES, ENVIRONMENT), Report()
    # As Ctrl-C does, so that nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        command("docker", "info")
        stack.compose("down", "--volumes")
        Drill(stack, report).run()
    except Exception as error:
        report.check(
            "the drill went through", False, str(error) if isinstance(error, Failure) else repr(error), "it does"
        )
    finally:
        report.write(FOLDER / "report.md")
        if not report.met:
            with contextlib.suppress(Failure):
                (FOLDER / "services.log").write_text(stack.compose("logs", "--no-color", "--timestamps"))
        if not arguments.keep:
            with contextlib.suppress(Failure):
                stack.compose("down", "--volumes")
    print(f"\n{report.seconds:5.0f} s  {'all bounds kept' if report.met else 'MISSED'}: {FOLDER / 'report.md'}")
    return 0 if report.met else 1


if __name__ == "__main__":
    sys.exit(main())
