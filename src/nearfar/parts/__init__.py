"""The rooms of a method: encoders, critics, negatives, selections, bounds, priors. Rooms do not import one
another."""
