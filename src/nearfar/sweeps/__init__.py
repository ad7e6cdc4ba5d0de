"""Many settings tried, one chosen: `nearfar sweep`, `nf.sweep`.

    words --Space--> cells (settings × seeds) --claimed by whoever is free--> DIR/cells/*/result.json --> table, best, its test figure

The folder is the storage: a cell's name says its settings completely, a claim is a lock that ends with the process that holds it, and a
result is written whole. So the same command goes on after a kill, and any number of processes may work on one folder.
"""
