"""What a capture has found: kernels that a manifest can name, and what it cannot, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cutlass_aot.builder.messages import problem_from_record, problem_record
from cutlass_aot.errors import CorruptFile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.encoding import seal, unseal
from cutlass_aot.schema.kernel import Values, values_from_record

KIND = "cutlass-aot capture"
SCHEMA = 2


class Sighting(NamedTuple):
    """One kernel that a program compiled, or asked for.

    Attributes:
        generator: the generator that has it.
        problem: its operands.
        traits: its design and its parameters.
        target: the GPU code target it was compiled for, ``""`` if it was only asked for.
        targets: every target that it is declared for; empty if its generator is to be asked.
        plugin: module to import for the generator, ``""`` for one that is built in.
    """

    generator: str
    problem: Problem
    traits: Values
    target: str = ""
    targets: tuple[str, ...] = ()
    plugin: str = ""


@dataclass
class Found:
    """What a capture has found.

    Attributes:
        kernels: in the order of their first sighting, each once.
        others: what a manifest cannot express: what was compiled, to the reason.
    """

    kernels: dict[Sighting, None] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)

    def merge(self, other: Found) -> None:
        """Take in what another capture has found."""
        self.kernels.update(other.kernels)
        self.others.update(other.others)

    def to_bytes(self) -> bytes:
        """A file of it, for another process."""
        kernels = [
            [
                kernel.generator,
                problem_record(kernel.problem),
                dict(kernel.traits),
                kernel.target,
                list(kernel.targets),
                kernel.plugin,
            ]
            # A copy: another thread of the program may be finding something.
            for kernel in tuple(self.kernels)
        ]
        return seal(KIND, SCHEMA, {"kernels": kernels, "others": dict(self.others)})

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Found:
        """Read what :meth:`to_bytes` gave.

        Raises:
            CorruptFile: if it is not that.
        """
        body: Mapping[str, Any] = unseal(data, KIND, SCHEMA, what)
        try:
            kernels = [
                Sighting(
                    str(generator),
                    problem_from_record(problem),
                    Values.of(values_from_record(traits)),
                    str(target),
                    tuple(map(str, targets)),
                    str(plugin),
                )
                for generator, problem, traits, target, targets, plugin in body["kernels"]
            ]
            others = {str(name): str(reason) for name, reason in body["others"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None
        return cls(dict.fromkeys(kernels), others)
