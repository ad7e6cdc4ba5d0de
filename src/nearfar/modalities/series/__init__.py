"""Time series as rows of numbers."""
