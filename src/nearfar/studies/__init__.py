"""The papers' experiments. A module of this package lists its studies as `STUDIES`; most are comparisons
(comparison.py)."""

from nearfar.studies.frame import Study, StudyResult, StudyRow, StudyTable, Workspace
from nearfar.studies.run import run_study, studies

__all__ = ["Study", "StudyResult", "StudyRow", "StudyTable", "Workspace", "run_study", "studies"]
