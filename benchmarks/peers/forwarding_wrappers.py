"""Lets Gymnasium's wrappers forward attributes, as they did before version 1.0, which Sample Factory needs.

Sample Factory 2.1.1 asks for Gymnasium below 1.0, which has neither LunarLander-v3 nor the present `CartPoleVectorEnv`.
Its processes import this module before they make environments.
"""

from typing import Any

import gymnasium


def _forwarded(self: "gymnasium.Wrapper[Any, Any, Any, Any]", name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(self.env, name)


gymnasium.Wrapper.__getattr__ = _forwarded  # type: ignore[attr-defined]
