"""Checks the files of indexes while nothing else uses them, and repairs the indexes.

`check_folder` checks a data folder or the folder of one index. It reads the files with the code
that opens indexes, so an index with the verdict "ok" opens. This package may import all other
packages of the core.
"""

from divgrpc.doctor.folders import check_folder
from divgrpc.doctor.reports import Finding, Report, Verdict

__all__ = ["Finding", "Report", "Verdict", "check_folder"]
