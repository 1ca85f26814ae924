"""``copy.replace`` of Python 3.13, for the versions before it."""

import dataclasses
from typing import Any


def replace(record: Any, /, **changes: Any) -> Any:
    """A dataclass or a named tuple with some fields changed."""
    return record._replace(**changes) if isinstance(record, tuple) else dataclasses.replace(record, **changes)
