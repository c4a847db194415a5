"""The report of runs: one HTML page without scripts, and the server that shows it while a run trains."""
