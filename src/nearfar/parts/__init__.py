"""The rooms of a method: encoders, critics, negatives, selections, bounds, priors. None imports another."""
