"""`nearfar sweep`, `nf.sweep`: tries settings, selects on a validation split, reports on test data.

engine.py computes cells in folders, resumes them and shares them among processes; studies and semi use it
too.
"""
