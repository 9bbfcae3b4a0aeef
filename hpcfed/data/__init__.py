"""Data sets, their partition among clients, and augmentation.

The registries are in `hpcfed.config.datasets`, because a job names their entries.
"""

from hpcfed.config.datasets import DATASETS as DATASETS
from hpcfed.config.datasets import PARTITIONS as PARTITIONS
from hpcfed.config.datasets import Scheme as Scheme
