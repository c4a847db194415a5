"""The BLAS with which NumPy multiplies matrices, for compiled code.

numba's own products need SciPy, which takes 113 MB for this one function.
"""

import ctypes
import importlib

import numpy as np

_NAMES = ("scipy_cblas_sgemm64_", "cblas_sgemm64_", "scipy_cblas_sgemm", "cblas_sgemm", "cblas_sgemm$NEWLAPACK$ILP64")
"""Names of the product of float32 matrices: in NumPy's own wheels, those of distributions, and Apple's."""


def sgemm_address() -> int | None:
    """Returns the address of `cblas_sgemm` in the library with which NumPy is linked; None if it has no known name."""
    # NumPy 1.26 has stand-ins in Python in a module of the later name.
    core = "core" if np.__version__.startswith("1.") else "_core"
    library = ctypes.CDLL(importlib.import_module(f"numpy.{core}._multiarray_umath").__file__)
    for name in _NAMES:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return None
