"""The certificates of a run's services: their content, and how they are checked, read again, and made."""
