"""A run's records in trackers of experiments: W&B, MLflow and Trackio."""
