"""The papers' experiments, one file each. A module of this package that defines `STUDY` is a study."""

from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.run import run_study, studies

__all__ = ["Bench", "Finding", "Result", "Row", "Study", "run_study", "studies"]
