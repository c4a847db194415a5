"""The choice between NumPy and torch for the inference of a policy. torch is imported only where it is chosen."""

from typing import Any

from penstock.acting.protocols import Runner
from penstock.algo import published
from penstock.machine import extras
from penstock.small import policy
from penstock.small.policy import NumpyRunner
from penstock.types.run import Weights
from penstock.types.spaces import Inference


def runner_of(
    weights: Weights,
    *,
    temperature: float = 1.0,
    inference: Inference = "auto",
    module: str | None = None,
    device: Any = None,
) -> Runner:
    """Loads a policy that samples at this temperature. `module` is the only module that may be imported.

    `device` is the device of torch on which environments return tensors (`vectors.device_of`).

    Raises `ConfigurationError` if the bytes are cut short or need a newer release, or if torch is needed and missing,
    and `ForeignCode` if the weights name another module.
    """
    reason = "actor.inference is torch" if device is None else "the environments return tensors"
    if inference == "auto" and device is None:
        description = published.of_metadata(published.read_metadata(weights.data))
        reason = policy.obstacle(description)
        if not reason:
            return NumpyRunner(weights, description, temperature=temperature)
    extras.require("torch", f"the policy of this run ({reason})")
    from penstock.acting.policies.inference import PolicyRunner

    return PolicyRunner(weights, temperature=temperature, module=module, device=device or "cpu")
