"""The GPU assembly of a kernel's object."""

from __future__ import annotations

import subprocess
import tempfile

from cutlass_aot.builder.compile.audit import cubins_of
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.packages import package_file
from cutlass_aot.errors import ArtifactError


def disassemble(data: bytes) -> str:
    """The GPU assembly of an object, as NVIDIA's ``nvdisasm`` prints it.

    Raises:
        CorruptFile: if the bytes are truncated or malformed.
        ArtifactError: if there is no GPU code, or it cannot be disassembled.
        ToolchainError: if the package nvidia-cuda-nvdisasm, which the extra ``dev`` brings, is missing.
    """
    cubins = cubins_of(KernelObject.from_bytes(data).gpu_code)
    if not cubins:
        raise ArtifactError("the object holds no GPU code to disassemble")
    nvdisasm = package_file("nvidia-cuda-nvdisasm", "bin/nvdisasm")
    texts = []
    for cubin in cubins:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin.code)
            file.flush()
            try:
                done = subprocess.run(
                    [str(nvdisasm), "--print-code", file.name],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=300,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise ArtifactError(f"nvdisasm did not run to its end: {error}") from None
        if done.returncode != 0:
            words = done.stderr.decode("utf-8", "replace").replace(file.name, "cubin").strip()
            raise ArtifactError(f"nvdisasm refused the GPU code: {words[-500:]}")
        texts.append(done.stdout.decode("utf-8", "replace"))
    return "\n".join(texts)
