"""Bounds and constants in the forward pass of a policy, for torch and for NumPy. This module imports neither."""

MAX_OBSERVATION = 1e15
"""Bound on the magnitude of observations that are not standardised. Within it no layer overflows for any weights."""

MAX_STANDARDISED = 10.0
"""Bound on the magnitude of standardised observations, in standard deviations."""

LEAST_RELATIVE_DEVIATION = 1e-7
"""Deviation, as a share of the mean, down to which a number is standardised: about one step of float32. Less than that
is rounding."""

LEAST_VARIANCE = 1e-60
"""Variance of a number that varies. The reciprocal of its root, and products with it, are finite in float32."""

AT_BOUND = 0.999
"""Share of half of the range of a squashed action from which on it is at its bound, which it never reaches."""

LARGEST_MEAN = 10.0
"""Mean of returns, in their standard deviations, above which values are relative to it. The error of a critic that
begins at 0 would dominate the gradients of layers that policy and value share. A smaller mean is not an offset: long
episodes of equal rewards have one, and a critic that begins there explores less where all rewards are negative."""

LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of the log standard deviations of continuous actions."""

SQUASHED_LOG_STD_RANGE = (-5.0, 0.7)
"""Narrower than `LOG_STD_RANGE`, because a larger deviation before a tanh only moves actions to their bounds, and
because `SquashedGaussian.entropy` is accurate only up to this deviation."""
