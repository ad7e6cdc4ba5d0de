"""Exit codes: done, bad input (one sentence on standard error), stopped but resumable by the same command."""

DONE, BAD_INPUT, RESUMABLE = 0, 2, 75
