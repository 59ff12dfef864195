import os
from pathlib import Path

import pytest
from hypothesis import settings

# A shared two-core machine makes timing-based deadlines flaky; correctness is what these tests are about.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the public data sets; tests that need it are skipped where it is absent."""
    root = os.environ.get("STREAM_CCSD_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("real data not found: set STREAM_CCSD_DATA to the folder with banksim/ and ucr/")
    return Path(root)
