"""Random problems of known mutual information.

`calibration` draws structural equations, `reporting` draws latent graphs, copulas and partitions. The two
share `problem.py` (what a problem is) and no building block. What is set on the first is reported on the
second.
"""
