"""The algorithm: pure functions and modules on torch. docs/ARCHITECTURE.md has the mathematics in one place."""
