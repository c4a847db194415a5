"""Files that a learner writes for later sessions: checkpoints, versions, journal and records."""
