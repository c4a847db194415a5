"""The base class of wrappers of vector environments."""

from typing import TYPE_CHECKING, Any

from gymnasium import vector

if TYPE_CHECKING:
    VectorWrapper = vector.VectorWrapper[Any, Any, Any, Any, Any]
else:
    # Gymnasium's class takes parameters from release 1.4 on.
    VectorWrapper = vector.VectorWrapper
