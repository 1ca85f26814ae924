"""Run a program as it is served, on a machine without a GPU: what answers is looked up and loaded, and not
called.

    python serve_program.py BUNDLE TARGET PROFILE PROGRAM [without-dsl]

Prints a JSON object: the callables that were answered, and what was said of those that were not.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def main(bundle: str, target: str, profile: str, program: str, without_dsl: str = "") -> None:
    os.environ["CUTE_DSL_ARCH"] = target
    from cutlass_aot.errors import CutlassAotError
    from cutlass_aot.generators.device_profiles import load_profile
    from cutlass_aot.programs.record import pretend_gpu
    from cutlass_aot.programs.record.record import Nothing
    from cutlass_aot.programs.serve.explain import explain_miss
    from cutlass_aot.programs.serve.serve import Server, opened
    from cutlass_aot.programs.start.interception import Compile, Interception

    device = load_profile(profile)
    os.environ.update(pretend_gpu.environment(device, target))
    pretend_gpu.install(device, target, fake_tensors=True)
    server = Server()
    server.bundles = (opened(bundle),)
    if without_dsl:
        from cutlass_aot import without_dsl as names

        names.activate(next(server.bundles[0].requests.requests()).code["nvidia-cutlass-dsl"])
    answered: list[str] = []
    refused: list[str] = []

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile) -> Any:
        try:
            request = server.request(compiler, arguments, keywords)
            if callable(server.find(request)):
                answered.append(request.callable)
            else:
                refused.append(explain_miss(request, server.bundles))
        except CutlassAotError as error:
            refused.append(str(error))
        return Nothing()

    Interception(answer).begin()
    sys.argv = [program]
    # In place of this file's, as for a program that is run.
    sys.path[0] = str(Path(program).absolute().parent)
    runpy.run_path(program, run_name="__main__")
    print(json.dumps({"answered": sorted(answered), "refused": refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
