"""Checks the files of indexes while nothing else uses them, and repairs what can be repaired.

`check_folder` checks a data folder or the folder of one index. The files are read by the code that
opens indexes, so that a folder which is `ok` opens. It may import all other packages of the core.
"""

from divgrpc.doctor.folders import check_folder
from divgrpc.doctor.reports import Finding, Report, Verdict

__all__ = ["Finding", "Report", "Verdict", "check_folder"]
