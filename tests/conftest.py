"""How several processes share out the tests: by file, those of the virtual cluster to one of them;
longest first.
"""

import pytest

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
