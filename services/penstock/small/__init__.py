"""One policy without autograd: small networks in NumPy, which actors import, and in compiled code, which learners do.

`algo` defines these policies in torch; tests compare the two. Modules of this folder import neither torch nor numba;
the modules of `compiled` import both.
"""
