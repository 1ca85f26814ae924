"""docs/guides/building.md: its commands run, its events are what a build tells, its options exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from cutlass_aot.builder.check.toolchain_test import _ADVICE
from cutlass_aot.builder.events import Event
from cutlass_aot.cli.build import command as build_command
from cutlass_aot.cli.build import plan as plan_command
from cutlass_aot.cli.doctor import _STEPS
from cutlass_aot.cli.doctor import command as doctor_command
from cutlass_aot.cli.output.event_lines import NAMES, EventLines
from cutlass_aot.cli.output.report import page
from tests.support.build_events import samples, tell_all
from tests.support.commands import run_commands
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "guides" / "building.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)).splitlines()


def test_every_event_and_field_is_documented(capsys):
    told = samples(Path("x.log"))
    assert {type(event) for event in told} == set(get_args(Event)) == set(NAMES)
    tell_all(EventLines(), told)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    fields = {record["event"]: set(record) - {"event", "at"} for record in records}
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", TEXT, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", cells)) for name, cells in rows} == fields


def test_every_option_that_is_named_exists():
    known = {option for command in (build_command, plan_command, doctor_command) for item in command.params
             for option in item.opts}  # fmt: skip
    named = set(re.findall(r"(?<=[ `])--[a-z-]+", TEXT))
    assert named
    assert named <= known


def test_every_step_of_the_toolchain_test_is_documented():
    assert all(f"`{step}`" in TEXT for step in _STEPS)
    assert set(_STEPS) < set(_ADVICE)


def test_the_bounds_of_a_page_are_those_it_has():
    bounds = (page.MAX_LOG_BYTES, page.MAX_LOGS_BYTES)
    assert all(f"{bound:,}" in TEXT for bound in bounds)


@pytest.mark.compile
def test_the_commands_run_as_they_are_written():
    assert len(COMMANDS) >= 3
    run_commands(COMMANDS)
    lines = (REPOSITORY / "build" / "smoke.events").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "finished"
    assert "</html>" in (REPOSITORY / "build" / "smoke.html").read_text()
