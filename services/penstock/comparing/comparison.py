"""The comparison of two settings, A and B, by runs with paired seeds: what may be compared, and the verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from penstock.comparing.outcomes import Means, Outcome, means
from penstock.comparing.statistics import (
    ERROR,
    Estimate,
    Values,
    interquartile_mean,
    log_ratios,
    look,
    mean_return,
    sequential_interval,
    stratified_bootstrap,
    t_interval,
)
from penstock.config.recorded import OF_ONE_RUN
from penstock.errors import ConfigurationError
from penstock.machine.files import write_json

_ENVIRONMENT = ("environment.id", "environment.kwargs", "environment.variants")


@dataclass(frozen=True, slots=True)
class Row:
    """A difference between A and B: the ratio B / A, or the difference B - A, with its interval.

    Attributes:
        name: Name of the measure.
        is_ratio: Whether it is a ratio.
        estimate: The ratio or difference.
    """

    name: str
    is_ratio: bool
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Result:
    """What the pairs of runs show.

    Attributes:
        pairs: Number of pairs, up to the look that decided.
        a: Means of the runs with settings A.
        b: Means of the runs with settings B.
        rows: Differences between them. The verdict is that of the first one.
        decided: Whether the first one's interval excludes equality.
        verdict: The verdict, in one line.
    """

    pairs: int
    a: Means
    b: Means
    rows: tuple[Row, ...]
    decided: bool
    verdict: str


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns the settings in which A and B differ, from the texts of all settings; those of one run are ignored.

    Raises `ConfigurationError` if there are none, or if their runs can't be compared.
    """
    found = {name: (a[name], b.get(name, "none")) for name in a if name not in OF_ONE_RUN}
    found = {name: values for name, values in found.items() if values[0] != values[1]}
    if not found:
        raise ConfigurationError("A and B have the same settings; change at least one")
    for name, (first, second) in found.items():
        if name in _ENVIRONMENT or name.startswith("evaluation."):
            how = "have different environments" if name in _ENVIRONMENT else "are evaluated differently"
            raise ConfigurationError(f"A and B {how}: {name} is {first} and {second}; give both the same")
    return found


def compare(a: Sequence[Outcome], b: Sequence[Outcome], *, threshold: bool, most: int | None) -> Result:
    """Compares the runs of two settings.

    Args:
        a: Outcomes with settings A, at least one, in the order in which the pairs were planned.
        b: Outcomes with settings B, with the seeds of A.
        threshold: Whether the verdict is about steps to the threshold, and not about the final return.
        most: Pairs of a sequential test; None: the number of pairs was fixed in advance.
    """
    assert [each.seed for each in a] == [each.seed for each in b]
    deciding = (_log_steps if threshold else _returns)(a, b)
    if most is None:
        estimate = t_interval(deciding)
    else:
        count = look(deciding, most)
        a, b, estimate = a[:count], b[:count], sequential_interval(deciding, most)
    first = (
        Row("steps to threshold", True, estimate.exponential()) if threshold else Row("final return", False, estimate)
    )
    rows = (first, *([Row("final return", False, t_interval(_returns(a, b)))] if threshold else []), _area(a, b))
    rows += (Row("interquartile mean of final returns", False, _interquartile(a, b)),)
    return Result(len(a), means(a), means(b), rows, estimate.sign != 0, _verdict(first, estimate.sign))


def write_table(
    file: Path,
    design: Mapping[str, object],
    changed: Mapping[str, tuple[str, str]],
    runs: Mapping[str, Sequence[Outcome]],
    result: Result | None,
) -> None:
    """Writes the table of a comparison. Raises `OSError`."""
    write_json(
        file,
        {
            "design": design,
            "differences": changed,
            "error": ERROR,
            "verdict": result.verdict if result else None,
            "result": asdict(result) if result else None,
            "runs": {label: [each.record() for each in outcomes] for label, outcomes in runs.items()},
        },
    )


def _log_steps(a: Sequence[Outcome], b: Sequence[Outcome]) -> Values:
    return log_ratios(
        [each.steps_to_threshold for each in a],
        [each.steps_to_threshold for each in b],
        trained=[(one.env_steps, other.env_steps) for one, other in zip(a, b, strict=True)],
    )


def _returns(a: Sequence[Outcome], b: Sequence[Outcome]) -> Values:
    return np.array([other.final_return - one.final_return for one, other in zip(a, b, strict=True)])


def _area(a: Sequence[Outcome], b: Sequence[Outcome]) -> Row:
    """Returns the row of the mean return over the environment steps that the evaluations of all runs cover."""
    begin = max(float(each.steps[0]) for each in (*a, *b))
    end = min(float(each.steps[-1]) for each in (*a, *b))
    of_a, of_b = (np.array([mean_return(each.steps, each.returns, begin, end) for each in side]) for side in (a, b))
    name = f"mean return from {begin:,.0f} to {end:,.0f} steps"
    if (of_a > 0.0).all() and (of_b > 0.0).all():
        return Row(name, True, t_interval(np.log(of_b / of_a)).exponential())
    return Row(name, False, t_interval(of_b - of_a))


def _interquartile(a: Sequence[Outcome], b: Sequence[Outcome]) -> Estimate:
    """Returns the difference of interquartile means, with a bootstrap in which each setting is a stratum."""
    strata = [np.array([each.final_return for each in side]) for side in (a, b)]
    return stratified_bootstrap(
        strata,
        lambda one, other: interquartile_mean(other) - interquartile_mean(one),
        rng=np.random.default_rng(0),
    )


def _verdict(row: Row, sign: int) -> str:
    words = {1: "slower", -1: "faster"} if row.is_ratio else {1: "better", -1: "worse"}
    lead = f"B is {words[sign]}" if sign else "no difference is shown"
    return f"{lead}: {row.name} {described(row)}"


def described(row: Row) -> str:
    """Returns a ratio or a difference with its interval, as text."""
    estimate, kind = row.estimate, "ratio" if row.is_ratio else "difference"
    form = ".2f" if row.is_ratio else "+.4g"
    if not math.isfinite(estimate.high):
        return f"{kind} {estimate.mean:{form}}, too few or equal values for an interval"
    return f"{kind} {estimate.mean:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"
