"""The version of hpcfed, for results, pages, the command and the package."""

__version__ = "0.1.0"
