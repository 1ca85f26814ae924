"""What the tests of registries share: pulls, refusals, and faults of a registry."""

from __future__ import annotations

import json
import re

import pytest

from cutlass_aot.bundle.oci.artifact import TITLE
from cutlass_aot.bundle.oci.pull import pull_bundle
from cutlass_aot.schema.bundles.signature import Terms


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def left_behind(out):
    return [path.name for path in out.parent.iterdir() if path.name != out.name]


def do_pull(fake, out, version=":1", **options):
    return pull_bundle(f"{fake.name}/k/small{version}", out, plain_http=True, **options)


def refused(fake, out, error, match, version=":1", **options):
    """A pull that fails: what is there stays, and nothing else is left. Gives the message."""
    before = tree(out)
    with pytest.raises(error) as raised:
        do_pull(fake, out, version, **options)
    assert re.search(match, str(raised.value)), raised.value
    assert tree(out) == before
    assert left_behind(out) == []
    return str(raised.value)


def on_blob(fake, name, answer):
    """Have ``answer`` called for the blob of a file of the bundle."""
    layers = json.loads(fake.manifests["1"])["layers"]
    digest = next(layer["digest"] for layer in layers if layer["annotations"][TITLE] == name)

    def fault(request):
        if request.command != "GET" or not request.path.endswith(digest):
            return False
        answer(request, fake.blobs[digest])
        return True

    fake.fault = fault


def change_manifest(fake, change):
    body = json.loads(fake.manifests["1"])
    change(body)
    return fake.put("1", body)


LIBRARY = "lib/x86_64/launcher.so.zst"


def endless(request, data):
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    for _ in range(100_000):
        request.wfile.write(b"400\r\n" + b"\0" * 1024 + b"\r\n")


def sign(bundle, key, sequence=0):
    from cutlass_aot.bundle.sign import KeyFile, sign_bundle

    sign_bundle(bundle, KeyFile(key, lambda: ""), Terms(sequence))


def public(key, name="ours"):
    (found,) = (path for path in key.parent.iterdir() if path.name.startswith(name) and path.suffix == ".pub")
    return found
