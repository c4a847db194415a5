"""Experiments on hypotheses about replay, most of which change the algorithm (`rules`)."""

import math
from dataclasses import replace

from benchmarks.study.experiments import REPLAY, Experiment, Setting, lags
from benchmarks.study.rules import AgeByPolicy, CriticReplay, ErrorPriority, GradientBound, Reanalysis, StepByEss
from benchmarks.study.tasks import Changes
from helpers.rule import PENSTOCK

_BY_AGE: Changes = {"sampling": {"alpha": 0.0}}
_BY_PRIORITY: Changes = {}


def _replaying(alike: Changes, **sampling: object) -> Changes:
    """Returns these changes with further ones of the section [sampling]."""
    return {"sampling": {**alike.get("sampling", {}), **sampling}}


_HALF_LIVES = (3, 12, 48)

POOL = Experiment(
    "Pool",
    "4 fresh and 28 replayed segments per batch, at most 256 versions old. Draws by age alone have an effective pool of"
    " 35, 139 and 527 segments (Kish).",
    tuple(
        Setting(f"half-life {half_life}, {name}", _replaying(alike, half_life=float(half_life), max_staleness=256))
        for half_life in _HALF_LIVES
        for name, alike in (("age without priority", _BY_AGE), ("prioritized", _BY_PRIORITY))
    ),
    base="sparing",
    short=True,
    tasks=REPLAY.tasks,
    compared=tuple(
        (f"half-life {half_life}, prioritized", f"half-life {half_life}, age without priority")
        for half_life in _HALF_LIVES
    ),
)

AGE_BY_POLICY = Experiment(
    "Age by policy",
    "4 fresh and 28 replayed segments per batch. Age halves the mass of a segment in 3 versions, or its mass is"
    " multiplied by a power of its overlap: the mean of min(1, pi / mu) when it was trained last.",
    (
        Setting("age without priority", _BY_AGE),
        Setting("prioritized", _BY_PRIORITY),
        *(
            Setting(f"overlap^{power}, {name}", _replaying(alike, half_life=math.inf), rule=AgeByPolicy(power))
            for power in (2, 4)
            for name, alike in (("without priority", _BY_AGE), ("prioritized", _BY_PRIORITY))
        ),
        Setting("no age, without priority", _replaying(_BY_AGE, half_life=math.inf)),
        Setting("no age, prioritized", _replaying(_BY_PRIORITY, half_life=math.inf)),
    ),
    base="sparing",
    short=True,
    tasks=REPLAY.tasks,
    compared=tuple(
        (f"overlap^{power}, {name}", by_age)
        for power in (2, 4)
        for name, by_age in (("without priority", "age without priority"), ("prioritized", "prioritized"))
    ),
)

CRITIC_REPLAY = Experiment(
    "Replay for the critic",
    "4 fresh and 28 replayed segments per batch, of which the replayed ones train policy and critic, or the critic"
    " alone; without replay, 4 fresh ones and as many gradient steps for each environment step.",
    (
        Setting("none, 4 fresh", replay=False, epochs_times=2.0, minibatches_times=0.5),
        Setting("both, age without priority", _BY_AGE),
        Setting("both, prioritized", _BY_PRIORITY),
        Setting("critic alone, age without priority", _BY_AGE, rule=CriticReplay()),
        Setting("critic alone, prioritized", _BY_PRIORITY, rule=CriticReplay()),
    ),
    base="sparing",
    short=True,
    tasks=REPLAY.tasks,
    compared=tuple(
        (f"critic alone, {name}", other)
        for name in ("age without priority", "prioritized")
        for other in (f"both, {name}", "none, 4 fresh")
    ),
)

_SHORTENED = {
    "V-trace, decoupled clip": "decoupled",
    "V-trace, clip in between (default)": "in between",
}
"""Names in the study of learning rates of the corrections that it compares."""

STEP_BY_ESS = replace(
    lags(8, 16),
    title="Learning rate by effective sample size",
    description=f"{lags().description} The learning rate is constant, or multiplied by the square root of the batch's"
    " effective sample share.",
    settings=(
        *lags().settings,
        *(
            replace(setting, name=f"{name}, {rate}", rule=rule)
            for setting in lags(8, 16).settings
            if (name := _SHORTENED.get(setting.name))
            for rate, rule in (("constant", PENSTOCK), ("sqrt(ESS)", StepByEss()))
        ),
    ),
    compared=tuple(
        (f"{lag} behind, {name}, sqrt(ESS)", f"{lag} behind, {name}, constant")
        for lag in (8, 16)
        for name in _SHORTENED.values()
    ),
)

REANALYSIS = Experiment(
    "Reanalysis",
    "4 fresh and 28 replayed segments per batch, at most 64 versions old. With reanalysis, the priorities of all of"
    " them are computed again every 16 batches.",
    tuple(
        Setting(f"half-life {half_life}, {name}", _replaying(_BY_PRIORITY, half_life=float(half_life)), rule=rule)
        for half_life in (3, 12)
        for name, rule in (("prioritized", PENSTOCK), ("reanalysed", Reanalysis()))
    ),
    base="sparing",
    short=True,
    tasks=REPLAY.tasks,
    compared=tuple(
        (f"half-life {half_life}, reanalysed", f"half-life {half_life}, prioritized") for half_life in (3, 12)
    ),
)

SIGNALS = replace(
    REPLAY,
    title="Signals",
    description="4 fresh and 28 replayed segments per batch, drawn by age and a priority: a mixture of the largest and"
    " the mean |D|, the mean alone, the bound on the gradient at the outputs of the networks, or the mean |A|.",
    settings=(
        Setting("age without priority", _BY_AGE),
        Setting("mixture", rule=ErrorPriority(0.9)),
        Setting("mean", rule=ErrorPriority(0.0)),
        Setting("bound", rule=GradientBound()),
        Setting("advantage"),
    ),
    compared=tuple((signal, "age without priority") for signal in ("mixture", "mean", "bound", "advantage")),
)

_EXPONENTS = {
    f"alpha {alpha}, beta {beta}": _replaying(_BY_PRIORITY, alpha=alpha, beta=beta)
    for alpha, beta in ((0.3, 0.4), (0.6, 0.4), (0.6, 1.0), (1.0, 1.0))
}

EXPONENTS = replace(
    REPLAY,
    title="Exponents",
    description="4 fresh and 28 replayed segments per batch, drawn by age alone, or also by priority with an exponent"
    " alpha. Importance weights correct for the draw with an exponent from 0.4 to 1, or with 1 throughout.",
    settings=(
        Setting("age without priority", _BY_AGE),
        *(Setting(name, changes) for name, changes in _EXPONENTS.items()),
    ),
    compared=tuple((name, "age without priority") for name in _EXPONENTS),
)

HYPOTHESES = {
    "exponents": EXPONENTS,
    "signals": SIGNALS,
    "pool": POOL,
    "age-by-policy": AGE_BY_POLICY,
    "critic-replay": CRITIC_REPLAY,
    "step-by-ess": STEP_BY_ESS,
    "reanalysis": REANALYSIS,
}
