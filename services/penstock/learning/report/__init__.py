"""Statistics that explain a run."""
