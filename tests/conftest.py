"""Property-based tests pass on a loaded machine: no example has a deadline, and slow generation is no failure."""

from multiprocessing import forkserver, get_all_start_methods

import pytest
from hypothesis import HealthCheck, settings

from tests.forked import PRELOADED

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

WHOLE_SUITE = 1000  # tests; a run of more starts the fork server before the first


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the fork server with everything imported that its children need: whoever starts it first decides."""
    if len(session.items) > WHOLE_SUITE and "forkserver" in get_all_start_methods():
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
