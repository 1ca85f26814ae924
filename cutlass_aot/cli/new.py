"""``cutlass-aot new``: write a package with a kernel or a generator of one's own, which builds as it is."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import keyword
import re
import secrets
import shutil
import sys
from pathlib import Path

import click

from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.registry import references
from cutlass_aot.schema.words import plural

TEMPLATES = Path(__file__).with_name("templates")
"""A package for each kind, which is an example as it stands; its name is replaced."""

_EXAMPLES = {"kernel": "axpy", "generator": "scale_add"}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", re.ASCII)
_MOST_CHARACTERS = 64


@click.command("new")
@click.argument("kind", type=click.Choice(list(_EXAMPLES)))
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write, which must not exist.  [default: NAME]",
)
def command(kind: str, name: str, output: Path | None) -> int:
    """Write a package with a kernel called NAME: an example that builds, for you to change.

    With `kernel`, the kernel is declared with its parameters and operands; with `generator`, a class
    enumerates kernels for the operands of a manifest.
    """
    folder = output or Path(name)
    written = write_package(kind, name, folder)
    example = ""
    if kind == "generator":
        example = " --dtypes f32.f32.f32 --layouts ttt --accumulator f32"
    say(f"{folder}: {plural(len(written), 'file')}")
    for path in written:
        say(f"  {path}")
    say("try it, without installing it:", f"  cd {folder}")
    source = "declared" if kind == "kernel" else "generator"
    say(f"  cutlass-aot try {name}_kernels/{source}.py{example}")
    say("and build a bundle of it:")
    say("  python -m pip install --editable .", f"  cutlass-aot build {name}.toml")
    return 0


def write_package(kind: str, name: str, folder: Path) -> list[str]:
    """Write a package from its template to a folder that does not exist; returns its files.

    Raises:
        click.BadParameter: if the name cannot be a kernel's, is that of another generator or of a module, or
            means something else.
        GeneratorError: if the folder exists or cannot be written.
    """
    known = references().get(name)
    if known is not None:
        problem = f"{name!r} is the name of generator {known.location}: give yours another one"
        raise click.BadParameter(problem, param_hint="NAME")
    if problem := _problem(kind, name):
        raise click.BadParameter(f"{name!r} cannot name a {kind}: {problem}", param_hint="NAME")
    files = {
        _renamed(path.relative_to(TEMPLATES / kind).as_posix(), kind, name): _renamed(
            path.read_text(encoding="utf-8"), kind, name
        )
        for path in sorted((TEMPLATES / kind).rglob("*"))
        if path.suffix in (".py", ".toml")
    }
    if folder.exists() or folder.is_symlink():
        raise GeneratorError(f"{folder} exists: name another folder with -o, or remove it")
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
        try:
            for path, text in files.items():
                (staging / path).parent.mkdir(parents=True, exist_ok=True)
                (staging / path).write_text(text, encoding="utf-8")
            staging.rename(folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    except OSError as error:
        raise GeneratorError(f"{folder} cannot be written: {error.strerror or error}") from None
    return list(files)


def _problem(kind: str, name: str) -> str:
    """Why a kernel or a generator cannot have a name, which also is that of a function; ``""`` if it can."""
    if keyword.iskeyword(name) or name.capitalize() in keyword.kwlist or keyword.issoftkeyword(name):
        meant = name if keyword.iskeyword(name) or keyword.issoftkeyword(name) else name.capitalize()
        as_written = "" if meant == name else f", as {meant}"
        return f"it is a keyword of Python{as_written}; choose another name"
    if not _NAME.fullmatch(name) or len(name) > _MOST_CHARACTERS:
        return (
            f"expected at most {_MOST_CHARACTERS} lower-case letters, digits and single underscores between "
            "them, a letter first"
        )
    if name == "gemm":
        return "it is the operation of GEMMs, which bundles serve by their operands; choose another name"
    if name in _names_of(TEMPLATES / kind):
        return "it means something else in the package that would be written; choose another name"
    if hasattr(builtins, name):
        return "it is a built-in name of Python, which the declaration would hide; choose another name"
    for module in (name, f"{name}_kernels"):
        if module in sys.stdlib_module_names:
            return f"{module} is a module of Python's library, which it would hide; choose another name"
        if (origin := _origin(module)) is not None:
            return (
                f"{module} is a module that is installed ({origin}), which it would hide; choose another name"
            )
    return ""


def _origin(module: str) -> str | None:
    """The file of an installed module; None if there is none. Folders without code are none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


def _names_of(template: Path) -> set[str]:
    """What a template's modules import, define and use, under names that are not the example's."""
    found: set[str] = set()
    for path in template.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).partition(".")[0])
    return found - {*_EXAMPLES.values()}


def _renamed(text: str, kind: str, name: str) -> str:
    """A template's text with another kernel's name, in each of the forms that it has there."""
    example = _EXAMPLES[kind]
    # Bundles of generators, and distributions, are called with dashes.
    forms = {f"{_dashed(example)}-kernels": f"{_dashed(name)}-kernels"}
    if _dashed(example) != example:
        forms[_dashed(example)] = _dashed(name)
    forms |= {_as_class(example): _as_class(name), example: name}
    # At once: the name may contain the example's, as saxpy does.
    return re.sub("|".join(map(re.escape, forms)), lambda match: forms[match[0]], text)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _as_class(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
