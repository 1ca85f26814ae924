"""The command line. A command's module is imported when the command is called; related commands share one."""

from __future__ import annotations

import contextlib
import importlib
import io
import signal
import sys
import threading
import traceback
from typing import Any

import click

from cutlass_aot import __version__
from cutlass_aot.cli.output.terminal import lines_of, say
from cutlass_aot.errors import CutlassAotError, ExitCode
from cutlass_aot.schema.words import did_you_mean

COMMANDS = {
    "build": "Build a manifest's bundle.",
    "bundle": "Merge, prefill, unpack, push or pull bundles.",
    "capture": "Write the manifest of what a program compiles.",
    "check": "Find what a declared kernel depends on undeclared.",
    "choose": "Show the kernel that a problem takes, and why.",
    "diff": "Show what two bundles, reports or plans differ in.",
    "doctor": "Say what this machine can build, and if it can run a bundle.",
    "generators": "List the known generators.",
    "installed": "List the bundles that a program would find, and why not others.",
    "key": "Make keys to sign bundles with.",
    "ls": "List the kernels of a bundle.",
    "new": "Write a package with a kernel or a generator of your own.",
    "plan": "Say what a build would do, and why.",
    "run": "Run a program, and answer its cute.compile from bundles.",
    "show": "Show one kernel of a bundle.",
    "sign": "Sign a bundle.",
    "store": "Look into a store, check it, and remove what nobody needs.",
    "try": "Compile one kernel, and say what it needs and how fast it is.",
    "tune": "Measure the kernels of a bundle on the GPU at hand.",
    "verify": "Check every byte of a bundle, a wheel or a store.",
    "wheel": "Pack a bundle into installable wheels.",
}

_MODULES = {"check": "generators", "installed": "ls", "key": "sign", "plan": "build", "try": "try_kernel"}
"""Module of each command that stands in another command's module."""


_EXIT_CODES = "\n".join(["\b", "Exit status:", *(f"  {code.value:<5}{code.meaning}" for code in ExitCode)])


class _Commands(click.Group):
    """A group that imports a command's module when the command is used; help imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = _MODULES.get(cmd_name, cmd_name)
        module = importlib.import_module(f"cutlass_aot.cli.{name}")
        command: click.Command = getattr(
            module, cmd_name if name != cmd_name and hasattr(module, cmd_name) else "command"
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click compares with the commands that are imported, here none, and before 8.4 with none at all.
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}{did_you_mean(name, COMMANDS) or '.'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(__version__, "-V", "--version", prog_name="cutlass-aot")
def group() -> None:
    """Build CuTe DSL kernels ahead of time, and look into what was built."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``cutlass-aot``; turns errors into one message and an exit status."""
    # SIGTERM cleans up as an interrupt from the terminal does.
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status: Any = group.main(args=arguments, prog_name="cutlass-aot", standalone_mode=False)
        # Flush what a plugin printed, so that a full disk is noticed here.
        click.echo(nl=False)
    except CutlassAotError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.ClickException as error:
        # Its message may have words of the user's, such as the name of a file, as they are.
        shown = io.StringIO()
        error.show(shown)
        say(*lines_of(shown.getvalue().rstrip("\n")), err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        _fail("; ".join(["interrupted", *map(str, error.args)]), ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone. Leave without a traceback from the interpreter's own flush.
        sys.stderr.close()
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        if not _is_of_output(error):
            raise
        # Closed, since the interpreter would try to write the rest again when it exits.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        _fail(f"cannot write the output: {error.strerror}", ExitCode.FAILED)
    sys.exit(status if isinstance(status, int) else ExitCode.GOOD)


def _fail(message: str, status: int) -> None:
    # If standard error cannot be written either, the exit status alone tells.
    with contextlib.suppress(OSError):
        say(*lines_of(f"error: {message}"), err=True)
    sys.exit(status)


def _is_of_output(error: OSError) -> bool:
    """Whether an error comes from printing: everything here is printed by ``click.echo``."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code is click.echo.__code__ for frame in frames)
