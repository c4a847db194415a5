"""The algorithm, as pure functions and torch modules. docs/ARCHITECTURE.md collects the mathematics."""
