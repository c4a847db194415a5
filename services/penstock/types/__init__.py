"""The data that the parts of Penstock exchange. The modules mirror the files of `proto/` and `wire/`.

All types are frozen, slotted dataclasses, and this package imports nothing else of Penstock. The receiver owns the
arrays in them, which are not written to afterwards. A record with the fields of a message is documented in `proto/`:
`wire.fields` converts between the two by name, and fails if either lacks a field of the other.
"""
