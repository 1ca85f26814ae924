"""What holds for all tests: properties are checked without a clock; unpacked code stays out of ~/.cache."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("without a clock", deadline=None)
settings.load_profile("without a clock")

# A shell that starts the tests with "&" has interrupts ignored, and so would have the programs that tests
# interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Collect no garbage while tests are imported: there is none, and looking takes a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported by now out of collections of garbage, which would look at it in vain."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def unpacked_code_has_a_place_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the whole session, since bundles that tests share are unpacked once; subprocesses inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTLASS_AOT_CACHE", str(tmp_path_factory.mktemp("unpacked")))
        yield
