"""``cutlass-aot store``: look into a store, check it, and remove what nobody needs."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cutlass_aot.cli.options import json_option, store_option
from cutlass_aot.cli.output.render import print_json, table
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.schema.words import plural, size
from cutlass_aot.store.maintenance.collect import DAYS, GRACE, collect
from cutlass_aot.store.store import Store


class FiniteRange(click.FloatRange):
    """A finite number in a range; Python reads ``nan`` and ``inf`` as floats, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number; ``nan`` and ``inf`` are refused."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


@click.group("store")
def command() -> None:
    """Look into a store, check it, and remove what nobody needs."""


@command.command("check", short_help="Read everything, and set aside what is damaged.")
@store_option
@click.option("--dry-run", is_flag=True, help="Only name what is damaged; change nothing.")
@json_option
def check_command(store: Path, dry_run: bool, as_json: bool) -> int:
    """Read everything; name what is damaged or incomplete, and set it aside, into damaged/.

    A build that needs it makes it again. A damaged root is only named: the next collection would remove what
    it kept if the root were gone; the next build of its bundle mends it. Builders may be at work meanwhile.
    Exit status: 0 if all is well, 1 if something was found.
    """
    from cutlass_aot.store.maintenance.check import check

    found = []
    for damage in check(Store(store, create=False), repair=not dry_run):
        found.append(damage)
        if not as_json:
            done = "; set aside" if damage.set_aside else ""
            say(f"{damage.path}: {damage.problem}{done}", err=True)
    if as_json:
        print_json({"store": str(store), "damage": [asdict(damage) for damage in found]})
    else:
        say(f"{store}: {plural(len(found), 'problem') if found else 'good'}")
    return 1 if found else 0


@command.command("gc", short_help="Remove what no root keeps and nobody used for long.")
@store_option
@click.option(
    "--days",
    type=FiniteRange(0),
    default=DAYS,
    show_default=True,
    help="Keep what was used within so many days.",
)
@click.option(
    "--grace",
    type=FiniteRange(0),
    default=GRACE / 3600,
    show_default=True,
    help="Hours within which nothing is removed, whatever --days says; never less than 70 minutes.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed; write nothing.")
@json_option
def gc_command(store: Path, days: float, grace: float, dry_run: bool, as_json: bool) -> int:
    """Remove what no root keeps and nobody has used for long, and leftovers of builders that were killed.

    What a running build has published or used is kept, and whatever was used in the last 70 minutes.
    """
    removed = collect(Store(store, create=False), days=days, grace=grace * 3600, dry_run=dry_run)
    total = sum(item.bytes for item in removed)
    if as_json:
        print_json(
            {
                "store": str(store),
                "dry_run": dry_run,
                "bytes": total,
                "removed": [asdict(item) for item in removed],
            }
        )
        return 0
    counts = Counter(item.what for item in removed)
    parts = [
        f"{count} {what}" if what in ("damaged", "temporary") else plural(count, what)
        for what, count in counts.items()
    ]
    if dry_run:
        for item in removed:
            say(f"{item.what}  {item.path}  {size(item.bytes)}")
    done = "would free" if dry_run else "removed"
    say(f"{store}: {done} {size(total)}" + (f": {', '.join(parts)}" if parts else ""))
    return 0


@command.command("stats", short_help="Say how much a store holds, and of what.")
@store_option
@json_option
def stats_command(store: Path, as_json: bool) -> int:
    """Say how much a store holds, of what, and how well it is compressed."""
    from cutlass_aot.store.maintenance.stats import measure

    stats = measure(Store(store, create=False))
    if as_json:
        kinds = {kind: {**asdict(value), "ratio": value.ratio} for kind, value in stats.kinds.items()}
        print_json({"store": str(store), **asdict(stats), "kinds": kinds})
        return 0
    rows = [
        (
            kind,
            value.count,
            size(value.record_bytes + value.blob_bytes),
            size((value.record_bytes + value.blob_bytes) // value.count),
            "-" if value.ratio is None else f"{value.ratio:.3f}",
        )
        for kind, value in stats.kinds.items()
    ]
    if rows:
        say(*table(rows, ("kind", "records", "bytes", "bytes each", "of content")))
    say(
        f"{plural(stats.blobs, 'blob')}, {size(stats.blob_bytes)}, {stats.unneeded_blobs} of them unneeded; "
        f"{plural(len(stats.roots), 'root')}; {plural(stats.logs, 'log')}; {stats.damaged} set aside"
    )
    if stats.oldest_use is not None and stats.newest_use is not None:
        say(f"last used: {_moment(stats.oldest_use)} to {_moment(stats.newest_use)}")
    return 0


def _moment(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


@command.command("roots", short_help="List the roots, whose records are kept.")
@store_option
@json_option
def roots_command(store: Path, as_json: bool) -> int:
    """List the roots: names whose records are kept however old they are."""
    from cutlass_aot.store.roots import roots

    found = roots(Store(store, create=False))
    if as_json:
        print_json({name: sorted(references) for name, references in found.items()})
        return 0
    for name, references in found.items():
        say(f"{name}  {plural(len(references), 'record')}")
    return 0


@command.command("forget", short_help="Give up a root; a later gc removes what it kept.")
@click.argument("name")
@store_option
@json_option
def forget_command(name: str, store: Path, as_json: bool) -> int:
    """Give up root NAME: a later `store gc` removes what it kept, once that is old enough."""
    from cutlass_aot.errors import StoreError
    from cutlass_aot.store.roots import drop_root

    if not drop_root(Store(store, create=False), name):
        raise StoreError(f"{store} has no root {name!r}: `cutlass-aot store roots` lists those there are")
    if as_json:
        print_json({"store": str(store), "forgotten": name})
    else:
        say(f"{store}: {name} is forgotten")
    return 0
