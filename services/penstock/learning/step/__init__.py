"""Training on one batch: estimates, gradient steps and their execution, and the batch on its device."""
