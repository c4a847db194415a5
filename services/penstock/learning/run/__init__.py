"""The run: training in the order of its batches, evaluations and publication, and the assembly of a learner."""
