"""Comparisons of settings: statistics of few runs, outcomes of runs, and the records of comparisons and grids."""
