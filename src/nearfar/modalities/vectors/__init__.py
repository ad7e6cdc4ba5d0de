"""Rows of numbers."""
