"""Construction of the sampling plan from the settings."""

import dataclasses

from penstock.config import SamplingConfig
from penstock.types.replay import SamplingPlan


def plan_of(sampling: SamplingConfig, *, session: int, next_batch: int, seed: int) -> SamplingPlan:
    """Returns the plan with which a run begins.

    Args:
        sampling: Sampling settings. Those with the name of a field of the plan are copied to it.
        session: Nonzero number of the session.
        next_batch: Number of the first batch.
        seed: Seed of the run.
    """
    own = {"session": session, "next_batch": next_batch, "seed": seed, "off_policy_degree": sampling.first_degree}
    names = {field.name for field in dataclasses.fields(SamplingPlan) if hasattr(sampling, field.name)} - own.keys()
    return SamplingPlan(**own, **{name: getattr(sampling, name) for name in names})
