"""``cutlass-aot plan``: what a build would do, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cutlass_aot.cli.options import build_options, manifest_argument, upstream_options
from cutlass_aot.cli.output.render import json_option, print_json, table
from cutlass_aot.words import plural


@click.command("plan")
@manifest_argument
@build_options
@upstream_options
@click.option("--explain", is_flag=True, help="Name the first thing that differs from the last build.")
@click.option("--all", "every", is_flag=True, help="List the kernels that the store has, too.")
@json_option
def command(manifest: Path, explain: bool, every: bool, as_json: bool, **settings: Any) -> int:
    """Say which kernels MANIFEST asks for, which the store has, and why the others are to be built."""
    from cutlass_aot.builder.build import make_plan
    from cutlass_aot.builder.settings import Settings
    from cutlass_aot.cli.output.progress import PlainReport

    plan = make_plan(manifest, Settings(**settings, tell=PlainReport()))
    selection, planned = plan.selection, plan.kernels
    if as_json:
        kernels = [
            {"name": item.kernel.name, "key": item.key, "build": item.artifact is None, "why": item.why}
            for item in planned
        ]
        rankings = [
            {
                "group": item.group,
                "gpu": item.gpu,
                "origin": item.origin,
                "shapes": len(item.problems),
            }
            for item in selection.rankings
        ]
        found = {"kernels": kernels, "rankings": rankings, "warnings": list(selection.warnings)}
        print_json(found | {"difference": plan.difference, "runs": list(plan.runs)})
        return 0
    if explain:
        click.echo(
            f"planned again: {plan.difference}" if plan.difference else "the plan of the last build holds"
        )
    missing = sum(item.artifact is None for item in planned)
    rows = [("build" if item.artifact is None else "-", item.kernel.name, item.why) for item in planned]
    shown = rows if every else [row for row in rows if row[0] == "build"]
    if shown:
        click.echo(table(shown, ("", "kernel", "why")))
    for warning in (*selection.warnings, *plan.runs):
        click.echo(f"note: {warning}")
    counts = f"{plural(len(planned), 'kernel')}: {missing} to build, {len(planned) - missing} present"
    more = f"; more may come of {plural(len(plan.runs), 'program')} to be run" if plan.runs else ""
    click.echo(counts + more)
    return 0
