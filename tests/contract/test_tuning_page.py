"""docs/guides/tuning.md: the list of problems is one, the file has those fields, the options exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from cutlass_aot.cli.choose import command as choose
from cutlass_aot.cli.tune import command as tune
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.shapes import parse_shapes
from tests.support.paths import REPOSITORY
from tests.support.synthetic import entry, kernels
from tests.support.tunings import tuned_group, tuning

PAGE = (REPOSITORY / "docs" / "guides" / "tuning.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_list_of_problems_is_one():
    (text,) = blocks("toml")
    found = parse_shapes(text.encode(), "docs/guides/tuning.md")
    assert found.notes == ()
    assert len(found.extents) == 10 * 4 + 2 * 2 + 3
    assert Extents(32, 1024, 128, 64) in found.extents


def test_every_field_of_the_file_is_explained():
    record = json.loads(tuning([tuned_group([entry(kernel) for kernel in kernels()])]).to_bytes())
    table = PAGE[PAGE.index("| key | |") : PAGE.index("A kernel has a `name`")]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in row.split(", ")}
    assert named == {f"`{key}`" for key in record if key not in ("kind", "schema")}
    (group,) = record["groups"]
    for name in (*group, *group["kernels"][0], *group["problems"][0], "costs", "model"):
        assert f"`{name}`" in PAGE


def test_every_option_that_is_named_exists():
    options = {name for one in (tune, choose) for parameter in one.params for name in parameter.opts}
    assert set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) <= options
    for block in blocks("bash"):
        _, name, *arguments = shlex.split(block)
        with {"tune": tune, "choose": choose}[name].make_context(name, arguments) as context:
            assert context.params["bundle"] == Path("build/bundles/sm90")
