"""Graphs: TU files, views, drawing, scores."""
