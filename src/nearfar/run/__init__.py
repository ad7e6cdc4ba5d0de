"""Reading and writing of run folders: settings, checkpoints, metrics, features, results (`folder.py` has the
file names).

`Run` (trained.py) is an opened run; `Teacher` (teachers.py) a frozen network that a student learns from.
"""
