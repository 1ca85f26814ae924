"""Reading the tuning files that a manifest names."""

from __future__ import annotations

import pytest

from cutlass_aot.builder.plan.tuned import read_tunings
from cutlass_aot.errors import CorruptFile, ManifestError
from cutlass_aot.manifest.model import load_manifest
from cutlass_aot.schema.tuning.tuning import write_tuning
from tests.support.tunings import tuning

MANIFEST = """
[bundle]
name = "x"
targets = ["sm_90a"]
device = "h200"
[select]
tuning = ["tuning/h200.json", "h100.json"]
[[kernels]]
generator = "simt_f64_gemm"
ab = "f64"
"""


@pytest.fixture
def manifest(tmp_path):
    (tmp_path / "m.toml").write_text(MANIFEST)
    write_tuning(tuning(), tmp_path / "tuning" / "h200.json")
    write_tuning(tuning(gpu="NVIDIA H100"), tmp_path / "h100.json")
    return load_manifest(tmp_path / "m.toml")


def test_files_are_read_by_their_names(manifest):
    found = read_tunings(manifest)
    assert list(found) == ["tuning/h200.json", "h100.json"]
    assert [item.gpu for item in found.values()] == ["NVIDIA H200", "NVIDIA H100"]


def test_a_file_that_changes_meanwhile_is_refused(manifest, tmp_path):
    write_tuning(tuning(date="2027-01-01"), tmp_path / "h100.json")
    with pytest.raises(
        ManifestError, match=r"select\.tuning: h100\.json: changed while the manifest was read"
    ):
        read_tunings(manifest)


def test_a_file_that_goes_meanwhile_is_refused(manifest, tmp_path):
    (tmp_path / "h100.json").unlink()
    with pytest.raises(ManifestError, match=r"select\.tuning: h100\.json: cannot be read: No such file"):
        read_tunings(manifest)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "m.toml").write_text(MANIFEST)
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "h200.json").write_text("{")
    (tmp_path / "h100.json").write_text("{}")
    with pytest.raises(CorruptFile, match=r"tuning/h200\.json is not readable JSON"):
        read_tunings(load_manifest(tmp_path / "m.toml"))
