"""Reports from result files alone: tables, figures, pages and references."""

import sys

from hpcfed.report.python import Report

sys.modules[__name__].__class__ = Report  # so that hpcfed.report is both package and function
