"""What holds for all tests: properties are checked without a clock; times are for tools/bench_*."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without a clock", deadline=None)
settings.load_profile("without a clock")
