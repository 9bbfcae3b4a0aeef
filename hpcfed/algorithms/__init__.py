"""Methods: one folder a kind, one file a method. The registry stands in `hpcfed.config.methods`,
for a job names them.
"""

from hpcfed.config.methods import ALGORITHMS as ALGORITHMS
from hpcfed.config.methods import load as load
