"""Reading and writing of run folders: settings, checkpoints, metrics, features, results.

`Run` (trained.py) is an opened run; `Teacher` (teachers.py) a frozen network that a student learns from.
"""
