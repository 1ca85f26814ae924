"""Kill builders at random points and break their store in every way known, then see that nothing was lost.

    python -m tools.torture.torture [--kills 200] [--builders 4] [--minutes 30] [--seed 0] [--keep DIR]

Needs the build extra, no GPU. One store; rounds of up to ``--builders`` builders at once, most of which are
killed by SIGKILL: after a random time, or before a random change on disk; every process of the build, or the
builder alone, whose workers then have to end by themselves. In some rounds operations on files fail (EIO,
ENOSPC, short writes), the disk is full or read-only, files of the store are flipped, truncated, emptied,
removed or swapped, before and during, clocks are wrong and go backwards, files are from the future, workers
are killed, ``store gc`` runs beside the builders.

After each round:

- no process of a build is left;
- ``store check`` is clean, or names only what was damaged on purpose, and a second one is clean;
- a bundle is not there, or is the undisturbed one, to the byte;
- builders that failed said why, and builders that nobody disturbed did not fail.

At the end an undisturbed build on that store gives the bundles that a fresh store gives, and nothing is left
lying about. Prints a line a round and a table; exits with 1 at the end if anything was wrong. Everything is
drawn from the seed, but what a kill hits depends on the machine.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from tools.bench.command import markdown
from tools.check.reproducible import describe_files, first_difference
from tools.torture.builder import BROKEN, PHASES, Builder, Kill, Place
from tools.torture.damage import Damager, Disk
from tools.torture.faults import compile_shim

MANIFESTS = {
    "whole": """
[bundle]
name = "whole"
targets = ["sm_90a", "sm_100a"]
device = { sm_90a = "h200", sm_100a = "b200" }

[[kernels]]
generator = "simt_f64_gemm"
ab = "f64"
layouts = ["tnt", "ttt"]
""",
    "part": """
[bundle]
name = "part"
targets = ["sm_100a"]
device = "b200"

[[kernels]]
generator = "simt_f64_gemm"
ab = "f64"
layouts = ["ttt"]
""",
}
"""Two bundles that share kernels."""

FAULTS = (
    "bad disk", "full disk", "read-only", "damage before", "damage during", "clock", "dates", "worker killed",
    "gc beside", "gc before",
)  # fmt: skip
HARMLESS = frozenset({"clock", "dates", "damage before", "gc beside", "gc before"})
"""What a builder has to succeed in spite of."""
REFUSED = frozenset({"damage before", "damage during", "full disk", "read-only"})
"""What a collection may refuse to work in."""

_YEAR = 365 * 86400
_END_SECONDS = 30
"""How long the processes of a killed builder may take to end: they may be importing the DSL."""

_ROUND_SECONDS = 180


@dataclass
class Count:
    """What happened so far."""

    rounds: int = 0
    builds: int = 0
    succeeded: int = 0
    failed: int = 0
    kills: int = 0
    kills_of_all: int = 0
    kills_at_change: int = 0
    kills_by_phase: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    compiled: int = 0
    compiled_twice: int = 0
    aside: int = 0
    longest_end: float = 0.0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Torture:
    """One run.

    Attributes:
        place: where the builders work.
        disk: what the store is on.
        rng: decides everything.
        most: builders at once, at most.
        references: files of each manifest's bundle, from a fresh store.
        seconds: how long undisturbed builds took, the latest.
        changes: how many changes on disk builds took, the latest.
    """

    place: Place
    disk: Disk
    rng: random.Random
    most: int
    references: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    count: Count = field(default_factory=Count)

    def __post_init__(self) -> None:
        self.damager = Damager(self.place.store, self.rng)
        for name, text in MANIFESTS.items():
            (self.place.scratch / f"{name}.toml").write_text(text, encoding="utf-8")

    # --- builders

    def start(self, manifest: str, faults: Mapping[str, str], kill: Kill) -> Builder:
        """Start a builder of one of the manifests; see :meth:`Builder.start`."""
        self.count.builds += 1
        path = self.place.scratch / f"{manifest}.toml"
        jobs = self.rng.randint(1, 2)
        return Builder.start(f"builder-{self.count.builds}", path, self.place, jobs, faults, kill)

    def undisturbed(self) -> list[str]:
        """Build both manifests and wait; returns what went wrong."""
        for manifest in MANIFESTS:
            builder = self.start(manifest, {}, Kill())
            while builder.poll():
                time.sleep(0.01)
            builder.close()
            if builder.process.returncode:
                return [f"an undisturbed build of {manifest} failed: {builder.words()}"]
            if builder.changes:
                self.changes.append(builder.changes)
            self.seconds.append(builder.ended - builder.started)
        return []

    def bundle(self, manifest: str) -> dict[str, str]:
        """Files of a bundle, with modes and digests; nothing if it is not there."""
        root = self.place.out / manifest
        return describe_files(root.rglob("*"), root)

    # --- a round

    def round(self) -> None:
        """Builders at once, faults, kills; then look at what is left."""
        self.count.rounds += 1
        chosen = {name for name in FAULTS if self.rng.random() < 0.14}
        if "read-only" in chosen and not self.disk.can_be_read_only:
            chosen.discard("read-only")
        if not self.disk.mounted:
            chosen.discard("full disk")
        self.before(chosen)
        builders = self.run_builders(chosen)
        self.disk.restore()
        for builder in builders:
            self.account(builder, undisturbed=chosen <= HARMLESS)
        made = Counter(name for builder in builders for name in builder.compiled)
        self.count.compiled += made.total()
        self.count.compiled_twice += made.total() - len(made)
        for name in chosen:
            self.count.faults[name] += 1
        self.look(f"round {self.count.rounds} ({', '.join(sorted(chosen)) or 'kills only'})")

    def before(self, chosen: set[str]) -> None:
        """Make work, and damage what lies there."""
        if not self.place.store.is_dir():
            return
        for kind, share in (("kernel", 0.6), ("library", 0.6), ("plan", 0.3), ("bundle", 0.7)):
            if self.rng.random() < 0.8:
                self.damager.remove(self.damager.files(f"records/{kind}"), share)
        for manifest in MANIFESTS:
            if self.rng.random() < 0.3:
                shutil.rmtree(self.place.out / manifest, ignore_errors=True)
        if "damage before" in chosen:
            self.damager.damage(self.damager.files(), self.rng.randint(1, 12))
        if "dates" in chosen:
            self.damager.date(self.damager.files())
        if "gc before" in chosen:
            self.ended(self.gc(old=True), may_refuse="damage before" in chosen)

    def gc(self, *, old: bool = False) -> subprocess.Popen[str]:
        """Collect what nothing needs, with no grace.

        Args:
            old: whether all looks long unused: else what was used of late is kept. Only while nobody builds.
        """
        if old:
            self.damager.age()
        command = ["store", "gc", "--store", str(self.place.store), "--days", "0", "--grace", "0"]
        return subprocess.Popen(
            [sys.executable, "-m", "cutlass_aot", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, collector: subprocess.Popen[str], *, may_refuse: bool) -> None:
        """Wait for a collection. Where a root is damaged it refuses: it cannot know what that one keeps."""
        _, words = collector.communicate()
        if "Traceback" in words or (collector.returncode and not may_refuse):
            self.wrong(f"store gc ended with {collector.returncode}: {words.strip()}")

    def environment(self, chosen: set[str]) -> dict[str, str]:
        """Faults of one builder, as faults.c takes them."""
        faults = {"FAULTS_SEED": str(self.rng.randrange(1 << 62))}
        if "bad disk" in chosen:
            faults["FAULTS_RATE"] = str(self.rng.choice((2000, 10000, 50000)))
            faults["FAULTS_SHORT"] = str(self.rng.choice((0, 100000)))
            faults["FAULTS_ERRORS"] = self.rng.choice(("EIO", "ENOSPC", "EIO,ENOSPC"))
        if "clock" in chosen:
            one, other = (self.rng.randint(-30 * _YEAR, 30 * _YEAR) for _ in range(2))
            if self.rng.random() < 0.5:
                other = one - self.rng.randint(1, 7200)
            faults["FAULTS_CLOCK"] = f"{one},{other},1"
        return faults

    def run_builders(self, chosen: set[str]) -> list[Builder]:
        """Run builders until all have ended."""
        length = upper(self.seconds)
        now = seen = time.monotonic()
        count = self.rng.randint(1, self.most)
        starts = [now, *sorted(now + self.rng.uniform(0, length / 2) for _ in range(count - 1))]
        # Kills by the clock, for the builders in order of their starts; the others are set when they start.
        builders: list[Builder] = []
        kills: dict[str, float] = {}
        actions = self.actions(chosen, now, length * (1 + count / 2))
        collector = self.gc(old=True) if "gc beside" in chosen and self.place.store.is_dir() else None
        deadline = now + _ROUND_SECONDS
        while starts or running(builders):
            now = time.monotonic()
            if starts and now >= starts[0]:
                starts.pop(0)
                way = self.rng.choices(("time", "change", "phase", "none"), (10, 5, 8, 1))[0]
                name = self.rng.choices(list(MANIFESTS), (3, 1))[0]
                started = self.start(name, self.environment(chosen), self.choose_kill(way))
                builders.append(started)
                if way == "time":
                    kills[started.name] = now + self.rng.uniform(0, length)
            for builder in builders:
                if kills.get(builder.name, now + 1) <= now and builder.poll():
                    del kills[builder.name]
                    builder.kill(everything=self.rng.random() < 0.5)
            while actions and actions[0][0] <= now:
                self.act(actions.pop(0)[1], builders)
            if collector and collector.poll() is not None:
                self.ended(collector, may_refuse=bool(chosen & REFUSED))
                collector = self.gc() if self.rng.random() < 0.5 else None
            if now > deadline:
                self.count.wrong.append(f"round {self.count.rounds}: builders did not end")
                for builder in builders:
                    builder.kill(everything=True)
            if now > seen + 0.2:
                seen = now
                for builder in builders:
                    builder.see_the_end()
            time.sleep(0.005)
        if collector:
            self.ended(collector, may_refuse=bool(chosen & REFUSED))
        return builders

    def choose_kill(self, way: str) -> Kill:
        """What a builder is to kill itself before."""
        if way == "change":
            return Kill(self.rng.randint(1, int(upper(self.changes))))
        if way == "phase":
            phase = self.rng.choice(("storing", "linking", "writing the bundle"))
            entry = self.rng.randint(1, 12) if phase == "storing" else 1
            return Kill(self.rng.randint(1, 8 if phase == "storing" else 40), phase, entry)
        return Kill()

    def actions(self, chosen: set[str], now: float, length: float) -> list[tuple[float, str]]:
        """What is to be done while builders run, and when."""
        names = []
        if "damage during" in chosen:
            names += ["damage"] * self.rng.randint(1, 4)
        if "worker killed" in chosen:
            names += ["kill a worker"] * self.rng.randint(1, 2)
        events = [(now + self.rng.uniform(0, length), name) for name in names]
        for fault, name in (("full disk", "fill"), ("read-only", "close")):
            if fault in chosen:
                start, end = sorted(now + self.rng.uniform(0, length) for _ in range(2))
                events += [(start, name), (end, "restore")]
        return sorted(events)

    def act(self, action: str, builders: list[Builder]) -> None:
        """Do one thing to the store, or to a builder."""
        if action == "damage":
            self.damager.damage(self.damager.files(), self.rng.randint(1, 6))
        elif action == "kill a worker":
            victims = [(item, item.processes()) for item in builders if item.poll()]
            for builder, processes in victims:
                others = sorted(set(processes) - {builder.process.pid})
                if others:
                    subprocess.run(
                        ["kill", "-9", str(self.rng.choice(others))], check=False, capture_output=True
                    )
                    break
        elif action == "fill":
            self.disk.fill(self.rng.choice((0, 8192, 100_000, 1_000_000)))
        elif action == "close":
            self.disk.close_to_writing()
        else:
            self.disk.restore()

    # --- afterwards

    def account(self, builder: Builder, *, undisturbed: bool) -> None:
        """Count what became of a builder, and see that it left no process and gave no bad answer."""
        start = time.monotonic()
        while builder.processes() and time.monotonic() - start < _END_SECONDS:
            time.sleep(0.05)
        if builder.processes():
            self.wrong(
                f"{builder.name}: processes {builder.processes()} live on {_END_SECONDS} s after its end"
            )
            builder.kill(everything=True)
        builder.close()
        status = builder.process.returncode
        if builder.killed_in:
            self.count.kills += 1
            self.count.kills_by_phase[builder.killed_in] += 1
            self.count.kills_of_all += builder.killed_all
            self.count.kills_at_change += builder.kill_before.change > 0
            self.count.longest_end = max(self.count.longest_end, builder.gone - builder.ended)
        elif status == 0:
            self.count.succeeded += 1
            if undisturbed:
                self.seconds.append(builder.ended - builder.started)
            if builder.changes:
                self.changes.append(builder.changes)
            name = builder.manifest.stem
            difference = first_difference(self.references[name], self.bundle(name))
            if difference:
                self.wrong(f"{builder.name} succeeded, and its bundle differs in {difference}")
        else:
            self.count.failed += 1
            harmed = not undisturbed or builder.kill_before.change > 0
            if not harmed or status == BROKEN or status < 0:
                self.wrong(f"{builder.name} ended with {status}:\n{builder.words()}")

    def wrong(self, text: str) -> None:
        """Note something that must not be."""
        self.count.wrong.append(f"round {self.count.rounds}: {text}")
        click.echo(f"WRONG: {self.count.wrong[-1]}", err=True)

    def look(self, what: str) -> None:
        """Check the store twice, and the bundles."""
        for manifest, reference in self.references.items():
            built = self.bundle(manifest)
            if built and first_difference(reference, built):
                self.wrong(f"{what}: bundle {manifest} differs in {first_difference(reference, built)}")
        if not (self.place.store / "FORMAT").is_file():
            return
        damage = self.check()
        # A check leaves a damaged root, so that nothing it kept is collected: a person gives it up.
        for item in damage:
            if str(item["path"]).startswith("roots/") and not item["set_aside"]:
                self.forget_root(str(item["path"]).removeprefix("roots/"))
        folder = self.place.store / "damaged"
        aside = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        self.count.aside += len(aside)
        for text in self.damager.unexplained(damage, aside):
            self.wrong(f"{what}: not damaged on purpose: {text}")
        again = self.check()
        if again:
            self.wrong(f"{what}: a second check reports {again}")
        shutil.rmtree(folder, ignore_errors=True)
        self.damager.forget()

    def check(self) -> list[dict[str, object]]:
        """What ``store check`` finds; it sets it aside."""
        command = ["store", "check", "--store", str(self.place.store), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "cutlass_aot", *command], capture_output=True, text=True, check=False
        )
        try:
            damage: list[dict[str, object]] = json.loads(done.stdout)["damage"]
        except (ValueError, KeyError):
            self.wrong(f"store check ended with {done.returncode}: {done.stderr.strip()}")
            return []
        if done.returncode != bool(damage):
            self.wrong(f"store check reports {len(damage)} and ended with {done.returncode}")
        return damage

    def forget_root(self, name: str) -> None:
        """Give up a root that is damaged."""
        command = ["store", "forget", name, "--store", str(self.place.store)]
        done = subprocess.run(
            [sys.executable, "-m", "cutlass_aot", *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            self.wrong(f"store forget {name} ended with {done.returncode}: {done.stderr.strip()}")

    def finish(self) -> None:
        """An undisturbed build on what is left gives what a fresh store gives, and nothing lies about."""
        shutil.rmtree(self.place.out, ignore_errors=True)
        for text in self.undisturbed():
            self.wrong(text)
        for manifest, reference in self.references.items():
            difference = first_difference(reference, self.bundle(manifest))
            if difference:
                self.wrong(f"at the end bundle {manifest} differs in {difference}")
        self.look("at the end")
        self.ended(self.gc(old=True), may_refuse=False)
        # The lock of a writer that was killed stays until the next one.
        names = {*MANIFESTS, *(f".{name}.lock" for name in MANIFESTS)}
        left = [path for path in self.place.out.iterdir() if path.name not in names]
        left += self.damager.files("locks")
        left += sorted(self.place.root.rglob(".new-*"))
        left += (self.place.store / "tmp").iterdir()
        for path in left:
            self.wrong(f"left lying about: {path.relative_to(self.place.root)}")


def upper(figures: Sequence[float]) -> float:
    """What most of the latest figures are below: many builds have little to do."""
    latest = sorted(figures[-20:])
    return latest[len(latest) * 8 // 10]


def running(builders: Sequence[Builder]) -> list[Builder]:
    """Those that have not ended; what all of them tell is read."""
    return [builder for builder in builders if builder.poll()]


def table(count: Count, damager: Damager, log: Path, seconds: float) -> str:
    """The result as Markdown."""
    noted = Counter(
        " ".join(line.split(" ", 2)[:2])
        for line in (log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else ())
    )
    noted = Counter({name: number for name, number in noted.items() if not name.endswith(" kill")})

    def listed(numbers: Counter[str], order: tuple[str, ...] = ()) -> str:
        names = order or tuple(sorted(numbers))
        return ", ".join(f"{name} {numbers[name]:,}" for name in names) or "none"

    rows = {
        "rounds": f"{count.rounds}, {seconds:.0f} s",
        "builds": f"{count.kills} killed, {count.succeeded} succeeded, {count.failed} failed",
        "kills by phase": listed(count.kills_by_phase, PHASES),
        "kills of every process of the build": str(count.kills_of_all),
        "kills before a change on disk": str(count.kills_at_change),
        "last process of a killed build gone after": f"{count.longest_end:.1f} s at most",
        "rounds with": listed(count.faults, FAULTS),
        "operations that failed": listed(noted),
        "files of the store": listed(damager.counts),
        "files set aside": f"{count.aside}, each damaged on purpose",
        "kernels compiled": f"{count.compiled:,}; twice in a round: {count.compiled_twice}",
        "wrong": str(len(count.wrong)),
    }
    return markdown(("", ""), rows.items())


@click.command()
@click.option("--kills", type=click.IntRange(1), default=200, show_default=True, help="Kills to reach.")
@click.option("--builders", type=click.IntRange(1, 16), default=4, show_default=True, help="Most at once.")
@click.option(
    "--minutes", type=click.FloatRange(0), default=30.0, show_default=True, help="Stop after these."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides what happens.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Work in this directory, which must not exist, and leave it there.",
)
def main(kills: int, builders: int, minutes: float, seed: int, keep: Path | None) -> None:
    """Kill builders at random points and break their store; then see that nothing was lost."""
    if keep:
        keep.mkdir(parents=True)
    scratch = (keep or Path(tempfile.mkdtemp(prefix="torture-"))).resolve()
    start = time.monotonic()
    shim = compile_shim(scratch)
    (scratch / "logs").mkdir()
    place = Place(scratch / "fresh", shim, scratch / "logs")
    fresh = Torture(place, Disk(place.root), random.Random(0), 1)  # noqa: S311
    try:
        if fresh.undisturbed():
            raise click.ClickException(f"no build succeeds here; see {scratch}/logs")
    finally:
        references = {manifest: fresh.bundle(manifest) for manifest in MANIFESTS}
        fresh.disk.close()
    (scratch / "tortured-logs").mkdir()
    place = Place(scratch / "tortured", shim, scratch / "tortured-logs")
    rng = random.Random(seed)  # noqa: S311
    torture = Torture(place, Disk(place.root), rng, builders, references, fresh.seconds, fresh.changes)
    try:
        if not torture.disk.mounted:
            click.echo("no file system can be mounted here: no full disk", err=True)
        while torture.count.kills < kills and time.monotonic() - start < 60 * minutes:
            torture.round()
            click.echo(
                f"round {torture.count.rounds}: {torture.count.kills} kills, {torture.count.failed} failed, "
                f"{torture.count.succeeded} succeeded, {torture.count.aside} set aside, "
                f"{time.monotonic() - start:.0f} s",
                err=True,
            )
        torture.finish()
    finally:
        torture.disk.restore()
        if keep and torture.disk.mounted:
            shutil.copytree(place.root, scratch / "left", symlinks=True)
        torture.disk.close()
        result = table(torture.count, torture.damager, place.fault_log, time.monotonic() - start)
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    click.echo(result)
    for text in torture.count.wrong:
        click.echo(f"wrong: {text}", err=True)
    if torture.count.kills < kills:
        click.echo(f"{torture.count.kills} kills in {minutes} minutes, {kills} were requested", err=True)
    if torture.count.wrong or torture.count.kills < kills:
        sys.exit(1)


if __name__ == "__main__":
    main()
