"""What an exception of the compiler says to a kernel's author: its text, and the line that it comes from."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import sysconfig
import traceback
from pathlib import Path

import cutlass_aot
from cutlass_aot.errors import DeclarationError
from cutlass_aot.schema.words import did_you_mean, without_colors

_OWN = Path(cutlass_aot.__file__).parent
_UNEXPECTED = re.compile(r"^(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")
_PLACE = re.compile(r"^ *--> ", re.MULTILINE)


def explain(error: BaseException) -> str:
    """The class and the text of an exception, without colours, and the author's line that it comes from.

    The compiler's own diagnostics name that line already; other exceptions, such as a ``TypeError`` or one of
    MLIR, do not. A wrong declaration says all in its text, and comes without its class.
    """
    own = isinstance(error, DeclarationError)
    text = without_colors(str(error) if own else f"{type(error).__name__}: {error}{_meant(error)}")
    place = None if _PLACE.search(text) else place_of(error)
    if place is not None:
        file, line, function = place
        where = f"{file}:{line}" + (f", in {function}" if function else "")
        gap = " " * len(str(line))
        text = f"{text}\n{gap}--> {where}\n{gap} |\n{line} | {linecache.getline(file, line).rstrip()}"
    # A file's name and a compiler's text may have bytes that UTF-8 has no characters for.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _meant(error: BaseException) -> str:
    """For a misspelt keyword of a call of this package, such as ``kernel(tunning=...)``, what it takes."""
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if found is None or found[1] not in cutlass_aot.__all__:
        return ""
    allowed = inspect.signature(getattr(cutlass_aot, found[1])).parameters
    return f": expected some of {', '.join(allowed)}{did_you_mean(found[2], allowed)}"


def place_of(error: BaseException) -> tuple[str, int, str] | None:
    """File, line and function of the author's code that an exception comes from; None if there is none.

    It is the innermost frame outside of the standard library, the DSL and the builder, of the first cause
    that has one.
    """
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    others = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    for module in ("cutlass", "tvm_ffi", "torch"):
        others += map(Path, getattr(sys.modules.get(module), "__path__", ()))
    for cause in reversed(causes):
        if isinstance(cause, SyntaxError) and cause.filename and cause.lineno:
            return cause.filename, cause.lineno, ""
        for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
            file = Path(frame.f_code.co_filename)
            if _is_of_an_author(file, others):
                return str(file), line, frame.f_code.co_name
    return None


def _is_of_an_author(file: Path, others: list[Path]) -> bool:
    """Whether a file is not in one of these folders, nor in this package, unless it is a kernel's source."""
    if file.is_relative_to(_OWN):
        folder, *inner = file.relative_to(_OWN).parts
        return folder == "kernels" or (folder == "generators" and len(inner) > 1)
    inside = [set(file.relative_to(other).parts) for other in others if file.is_relative_to(other)]
    # The standard library's folder also holds installed packages.
    return file.is_absolute() and all({"site-packages", "dist-packages"} & parts for parts in inside)
