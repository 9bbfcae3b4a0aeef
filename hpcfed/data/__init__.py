"""Examples: where they come from, which client holds which, and how they are varied in training.

The registries stand in `hpcfed.config.datasets`, for a job names them.
"""

from hpcfed.config.datasets import DATASETS as DATASETS
from hpcfed.config.datasets import PARTITIONS as PARTITIONS
from hpcfed.config.datasets import Scheme as Scheme
