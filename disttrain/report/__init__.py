"""What one sees of a run: the run directory, progress, the final table."""
