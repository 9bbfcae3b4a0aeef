"""Methods of federated learning: one folder per kind, one file per method.

The registry is in `hpcfed.config.methods`, because jobs name methods.
"""

from hpcfed.config.methods import ALGORITHMS as ALGORITHMS
from hpcfed.config.methods import load as load
