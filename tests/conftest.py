"""What holds for all tests: they compute on the CPU. And how several processes share them out: by
file, those of the virtual cluster to one of them; longest first.
"""

import os

import pytest

# A run whose job leaves run.device at "auto" computes where it does without a GPU, also in the
# processes that a test starts: bits, times and memory are those that the tests know. A test of a
# GPU pretends one, or starts a process with a mask of its own.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

FIRST = (
    "tests/slurm/",
    "tests/system/",
    "tests/contract/",
)  # few tests that take long, after which others fill up


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in FIRST])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class OneCluster(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return (
                "tests/slurm" if nodeid.startswith("tests/slurm/") else super()._split_scope(nodeid)
            )

    config.option.loadscopereorder = False  # which would begin with the files of most tests
    return OneCluster(config, log)
