"""A run folder, read and written: settings, checkpoints, metrics, features, results (see `folder.py`). `Run` is one that is opened."""
