"""The learner: batches to tensors, the training step, checkpoints, and the bookkeeping of a run."""
