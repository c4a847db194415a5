"""The algorithm, as pure functions and torch modules. docs/ARCHITECTURE.md collects the mathematics."""

from penstock import compiled_code

compiled_code.make_writable()
