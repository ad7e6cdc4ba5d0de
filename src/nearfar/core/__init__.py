"""The algorithm: types, scores, schedules, randomness and the method itself. Needs torch and nothing else."""
