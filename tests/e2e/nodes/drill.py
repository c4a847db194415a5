"""The steps of the drill over three nodes, the same for each engine.

First CartPole is trained to its end. Then a task that sleeps in each step runs, so that throughput depends on how many
actors live and not on the machine's processors, while actors, nodes and links fail. After each step, the ledger must
balance, and progress must have resumed within the engine's own times and a few seconds.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.config import Config
from tests.e2e.nodes.cluster import ActorPlace, Cluster, Direction, RunPlan
from tests.e2e.nodes.results import Results
from tests.e2e.nodes.watch import Watch
from tests.e2e.report import Report
from tests.support.machine.timing import Bound, wait_in_drill
from tests.support.segments.store_ledger import Account, account, acknowledged_in
from tests.support.training import equal_run

TASK = Path(__file__).parent / "task.py"

FEW, MANY, LEFT = 2, 12, 3
"""Actors at the start, after scaling up, and after scaling down."""
PREEMPTED = 6
"""Actors while half of them are taken away again and again."""
ROUNDS, ROUND_S = 10, 30.0
"""Preemptions of half of the actors, and the seconds from one to the next."""
CUT_S = 30.0
"""Seconds for which a link is cut."""
HALF_OPEN_S = 15.0
"""Seconds for which a link loses packets in one direction."""
QUIET_S = 15.0
"""Seconds of undisturbed work for a baseline."""
RESUMES_S = 5.0
"""Seconds after the engine's own times within which progress must resume."""
LEAST_SHARE = 0.9
"""Least ratio of the throughput under preemption to that of the actors that lived."""
THRESHOLD = 475.0
"""Return of CartPole at which it is learnt."""

LOST_S = Config().replay.grant_timeout_s
"""Seconds until the grants of a silent actor return, for which the learner may have to wait."""

COMMON = {
    "telemetry.log_level": "debug",
    "telemetry.log_format": "json",
}
CARTPOLE = {
    **COMMON,
    "environment.id": f"{TASK}:MarkedCartPole",
    "run.total_steps": "200000",
    "run.stop_at_return": str(THRESHOLD),
    "evaluation.threshold": str(THRESHOLD),
    "evaluation.interval_steps": "4096",
    "ppo.trace_decay": "0.98",
    "ppo.epochs": "4",
    "replay.capacity_segments": "20000",
}
PACED = {
    **COMMON,
    "environment.id": f"{TASK}:Marked",
    "environment.kwargs": "pause_s=0.004",
    "run.total_steps": "none",
    "run.total_minutes": "600",
    "actor.environments": "4",
    "actor.unroll_length": "16",
    "sampling.batch_segments": "64",
    "ppo.epochs": "1",
    "sampling.fresh_fraction": "1.0",
    "evaluation.interval_steps": "none",
    "evaluation.interval_minutes": "600",
    "checkpoint.save_interval_minutes": "0.25",
    "replay.capacity_segments": "200000",
}


@dataclass
class _Step:
    """One step while it is made.

    Attributes:
        began: Time of its beginning, by `time.time`.
        healed: Time at which everything that it had taken away was given back.
        share: Throughput over that of the living actors; None if it was not measured.
        notes: What else was seen.
    """

    began: float
    healed: float = 0.0
    share: float | None = None
    notes: str = ""


class Drill:
    """All steps of the drill, in order."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self._cluster, self._report = cluster, report
        self.results = Results(cluster.engine, report)
        self._start_s = 0.0
        self._actors = FEW

    def run(self) -> None:
        """Runs all steps. Raises `Failure`, or `AssertionError` of a wait, if the rest would be pointless."""
        self.learn()
        self.equal()
        self._cluster.start(RunPlan("paced", PACED, FEW, MANY))
        began = time.time()
        with Watch(self._cluster.watch_command()) as watch:
            self._report.begin(f"a paced run: {FEW} actors")
            watch.trains()
            self._start_s = time.time() - began
            self._report.note("from the start to the first new policy", f"{self._start_s:.1f} s")
            self.scale(watch)
            self.preempt(watch)
            self.kill_actors_node(watch)
            self.cut_link(watch)
            self.half_open(watch)
            self.kill_services_node(watch)
            self.update(watch)
            self._report.check(
                "policy versions never decrease",
                watch.backwards == 0 and watch.highest_version > 0,
                f"{watch.backwards} of {len(watch.samples)} samples lower than before, up to {watch.highest_version}",
                "0",
            )
        self._cluster.stop()
        self.results.add("all of the above, at rest", self._account())

    def learn(self) -> None:
        """Trains CartPole to its end, with which the engine must end everything."""
        self._report.begin("CartPole: from the start to the end of the run")
        began = time.time()
        self._cluster.start(RunPlan("cartpole", CARTPOLE, FEW, FEW))
        wait_in_drill(self._cluster.ended, "the engine to end the run", poll_s=1.0)
        best = json.loads(self._cluster.results().summary.read_text())["best_evaluation"] or {}
        self._report.check(
            "best evaluation",
            best.get("return_mean", 0.0) >= THRESHOLD,
            f"{best.get('return_mean')}, {time.time() - began:.0f} s after the start",
            f"{THRESHOLD:g} or more",
        )
        self.results.add("none: CartPole trained until its end, which ends the jobs", self._account())

    def equal(self) -> None:
        """Compares the best checkpoint of a run whose steps are determined with that of `penstock train`."""
        self._report.begin("degree 0, one actor and one seed: as `penstock train`")
        self._cluster.start(RunPlan("equal", equal_run.SETTINGS, 1, 1, equal_run.PRESET))
        wait_in_drill(self._cluster.ended, "the engine to end the run", poll_s=1.0)
        found, expected = equal_run.digest(self._cluster.results().root), equal_run.digest_here()
        self._report.check("SHA-256 of best.safetensors", found == expected, found[:16], expected[:16])

    def scale(self, watch: Watch) -> None:
        """Scales up and down."""
        with self._step(watch, f"scaled from {FEW} to {MANY} and to {LEFT} actors") as step:
            self._scale(watch, MANY)
            self._cluster.scale(LEFT)
            self._actors, step.healed = LEFT, time.time()

    def preempt(self, watch: Watch) -> None:
        """Takes away half of the actors again and again, and compares throughput with the share of living actors."""
        half = PREEMPTED // 2
        self._report.begin(f"{PREEMPTED} actors, of which half are preempted every {ROUND_S:.0f} s")
        self._scale(watch, PREEMPTED)
        quiet = self._undisturbed(watch)
        with self._step(
            watch, f"half of {PREEMPTED} actors preempted every {ROUND_S:.0f} s, {ROUNDS} times", loses=half
        ) as step:
            for number in range(ROUNDS):
                node = self._cluster.actor_nodes[number % len(self._cluster.actor_nodes)]
                self._cluster.preempt(self._half(node))
                time.sleep(max(0.0, step.began + ROUND_S * (number + 1) - time.time()))
            step.healed = time.time()
            alive = watch.actors(step.began, step.healed) / PREEMPTED
            self._await_actors(watch)
            full = (quiet + self._undisturbed(watch)) / 2
            step.share = watch.pace(step.began, step.healed) / full / alive
            step.notes = f"{alive:.0%} of the actors alive; {step.share:.2f} of the throughput of so many"
            self._report.check(
                "throughput under preemption over that of the living actors",
                step.share >= LEAST_SHARE,
                f"{step.share:.2f}, with {alive:.0%} of the actors alive; undisturbed {full:,.0f} steps per second",
                f"{LEAST_SHARE:g} or more",
            )

    def kill_actors_node(self, watch: Watch) -> None:
        """Kills the node with most actors; the engine moves them, or starts them again with their node."""
        node = self._fullest()
        with self._step(watch, "node with actors killed, and started again after a while", loses=1) as step:
            self._cluster.kill(node)
            time.sleep(self._cluster.times.detection_s)
            self._cluster.start_node(node)
            step.healed = time.time()

    def cut_link(self, watch: Watch) -> None:
        """Cuts the link of the node with most actors."""
        node = self._fullest()
        with self._step(watch, f"link of a node with actors cut for {CUT_S:.0f} s", loses=1) as step:
            self._cluster.cut(node)
            time.sleep(CUT_S)
            self._cluster.mend(node)
            step.healed = time.time()

    def half_open(self, watch: Watch) -> None:
        """Lets a node's link lose what goes to it, and then what comes from it: connections stay open, and are dead."""
        node = self._fullest()
        with self._step(
            watch, f"link of a node with actors half open, {HALF_OPEN_S:.0f} s in each direction", loses=1
        ) as step:
            directions: tuple[Direction, ...] = ("in", "out")
            for direction in directions:
                self._cluster.cut(node, direction)
                time.sleep(HALF_OPEN_S)
                self._cluster.mend(node)
            step.healed = time.time()

    def kill_services_node(self, watch: Watch) -> None:
        """Kills the node with learner, replay service and evaluator, and starts it again once the engine knows."""
        times = self._cluster.times
        with self._step(
            watch,
            "node with the services killed, and started again",
            fixed_s=times.detection_s + times.requeue_s,
            starts=True,
        ) as step:
            self._cluster.kill(self._cluster.services_node)
            time.sleep(times.detection_s)
            self._cluster.start_node(self._cluster.services_node)
            watch.trains()
            step.healed = time.time()

    def update(self, watch: Watch) -> None:
        """Replaces all actors while the run goes on."""
        with self._step(watch, "all actors replaced, as for a new version") as step:
            old = {actor.id for actor in self._cluster.actors()}
            self._cluster.update_actors()
            step.healed = time.time()
            left = old & {actor.id for actor in self._cluster.actors()}
            self._report.check("actors that were not replaced", not left, ", ".join(left) or "none", "none")

    @contextmanager
    def _step(
        self, watch: Watch, fault: str, *, fixed_s: float | None = None, starts: bool = False, loses: int = 0
    ) -> Iterator[_Step]:
        """Makes a step, waits until all actors are back and train, and adds its row.

        Progress must not stand still for longer than `fixed_s`, by default the engine's detection, plus `RESUMES_S`,
        and one undisturbed start if the step `starts` services. The step must be seen to take `loses` actors away.
        """
        self._report.begin(fault)
        step, before = _Step(time.time()), self._actors
        yield step
        self._await_actors(watch)
        fewest = min((each.actors for each in watch.between(step.began, time.time()) if each.answered), default=0)
        if loses:
            self._report.check(
                f"{fault}: fewest actors meanwhile", fewest <= before - loses, str(fewest), f"{before - loses} or fewer"
            )
        back_s = watch.now.time - step.healed
        end = watch.trains().time
        fixed_s = max(LOST_S, self._cluster.times.detection_s) if fixed_s is None else fixed_s
        bound = Bound(1.0 if starts else 0.0, self._start_s, fixed_s + RESUMES_S)
        gap = watch.longest_gap_s(step.began, end), bound
        self.results.add(fault, self._account(), gap=gap, back_s=back_s, share=step.share, notes=step.notes)

    def _scale(self, watch: Watch, actors: int) -> None:
        """Changes the number of actors, and waits until they have joined."""
        self._cluster.scale(actors)
        self._actors = actors
        self._await_actors(watch)

    def _await_actors(self, watch: Watch) -> None:
        """Waits until all actors have joined, and the engine runs as many.

        The learner alone could count actors on a node that the engine has given up, and that it ends a moment later.
        """
        watch.until(
            lambda sample: sample.actors == self._actors == len(self._cluster.actors()), f"{self._actors} actors"
        )

    def _undisturbed(self, watch: Watch) -> float:
        """Returns the pace of some seconds of undisturbed work."""
        began = time.time()
        time.sleep(QUIET_S)
        return watch.pace(began, watch.now.time)

    def _fullest(self) -> str:
        """Returns the node with most actors; the engine may have moved all of them to one."""
        counts = Counter(place.node for place in self._cluster.actors())
        return max(self._cluster.actor_nodes, key=lambda node: counts[node])

    def _half(self, node: str) -> list[ActorPlace]:
        """Returns half of the actors, those of a node first."""
        places = sorted(self._cluster.actors(), key=lambda place: (place.node != node, place.id))
        return places[: PREEMPTED // 2]

    def _account(self) -> Account:
        acknowledged = acknowledged_in(self._cluster.actor_log())
        return account(acknowledged, self._cluster.store())
