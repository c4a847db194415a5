"""The algorithm, as pure functions and torch modules. docs/design-learner.md collects the mathematics."""
