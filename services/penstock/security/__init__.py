"""The certificates of a run's services: what they say, how they are checked, read again, and made."""
