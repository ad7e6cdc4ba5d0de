"""Runs of several processes: the strategies, gathering with gradient, synchronised batch norm, sharded
weights.

The interface that everything else uses is `nearfar.core.strategy.Strategy`; `strategy.join` returns the one
of this process.
"""
