"""Runs of several processes: strategies, gathering with gradient, batch norm, sharded weights.

The interface of all this is `nearfar.core.strategy.Strategy`; `strategy.join` returns this process's.
"""
