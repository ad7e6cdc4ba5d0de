"""What to do with features after training: find similar instances, and find what is wrong with the data.

neighbours.py has the nearest neighbours of features. index.py stores features and answers queries. curate.py
lists near-duplicates, outliers and labels that the neighbours contradict.
"""

from nearfar.search.curate import Curation, curate
from nearfar.search.index import Index, build_index, search

__all__ = ["Curation", "Index", "build_index", "curate", "search"]
