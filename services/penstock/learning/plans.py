"""The sampling plan that the settings ask for."""

import dataclasses

from penstock.config import SamplingConfig
from penstock.types import SamplingPlan


def plan_of(sampling: SamplingConfig, *, session: int, next_batch: int, seed: int) -> SamplingPlan:
    """The plan a run begins with.

    Args:
        sampling: Settings; those that a plan has a field for enter it by name.
        session: Nonzero number of the learner's process.
        next_batch: Number of the first batch.
        seed: The run's.
    """
    own = {"session": session, "next_batch": next_batch, "seed": seed, "off_policy_degree": sampling.first_degree}
    names = {field.name for field in dataclasses.fields(SamplingPlan) if hasattr(sampling, field.name)} - own.keys()
    return SamplingPlan(**own, **{name: getattr(sampling, name) for name in names})
