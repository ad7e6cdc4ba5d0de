"""The papers' experiments. `study` and `comparison_study` list a function as one."""

from nearfar.studies.frame import Study, StudyResult, StudyRow, StudyTable, Workspace
from nearfar.studies.run import run_study, studies

__all__ = ["Study", "StudyResult", "StudyRow", "StudyTable", "Workspace", "run_study", "studies"]
