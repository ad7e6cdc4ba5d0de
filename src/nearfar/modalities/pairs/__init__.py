"""Pairs of columns: files, scores."""
