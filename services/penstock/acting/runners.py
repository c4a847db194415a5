"""The choice between NumPy and torch for the inference of a policy. torch is imported only where it is chosen."""

from penstock.acting import numpy_policy
from penstock.acting.numpy_policy import NumpyRunner
from penstock.acting.protocols import Runner
from penstock.algo import published
from penstock.types.networks import Inference
from penstock.types.run import Weights


def runner_of(
    weights: Weights, *, temperature: float = 1.0, inference: Inference = "auto", module: str | None = None
) -> Runner:
    """Loads a policy that samples at this temperature. `module` is the only module that may be imported.

    Raises `ConfigurationError` if the bytes are cut short or need a newer release, and `ForeignCode` if the weights
    name another module.
    """
    if inference == "auto":
        description = published.of_metadata(published.read_metadata(weights.data))
        if numpy_policy.applies_to(description):
            return NumpyRunner(weights, description, temperature=temperature)
    from penstock.acting.inference import PolicyRunner

    return PolicyRunner(weights, temperature=temperature, module=module)
