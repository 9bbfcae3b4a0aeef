"""The version of hpcfed: of results, pages, the command and the package."""

__version__ = "0.1.0"
