"""Functions and classes of users in the place of parts of the training step, each tried before training."""
