"""The papers' experiments. Each module lists its own as `STUDIES`; most are comparisons."""

from nearfar.studies.frame import Study, StudyResult, StudyRow, StudyTable, Workspace
from nearfar.studies.run import run_study, studies

__all__ = ["Study", "StudyResult", "StudyRow", "StudyTable", "Workspace", "run_study", "studies"]
