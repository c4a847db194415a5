"""The data that the parts of Penstock exchange. The modules mirror those of `proto/` and `wire/`.

All types are frozen, slotted dataclasses, and this package imports nothing else of Penstock. The receiver owns the
arrays in them, which are not written to afterwards.
"""
