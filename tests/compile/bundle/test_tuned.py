"""Tuning files in a manifest, with real builds: what fits goes into the bundle, what does not is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cutlass_aot
from cutlass_aot.builder import build as pipeline
from cutlass_aot.builder.settings import Settings
from cutlass_aot.bundle.apply_tuning import apply_tuning
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.cli.output.progress import PlainReport
from cutlass_aot.errors import CorruptFile, ManifestError
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.tuning.tuning import write_tuning
from tests.support.tunings import GPU, PROBLEM, tuned_group, tuning

pytestmark = pytest.mark.compile

MANIFEST = """
[bundle]
name = "double"
targets = ["sm_90a"]
device = "h200"
{select}
[[kernels]]
generator = "simt_f64_gemm"
ab = "f64"
layouts = ["tnt"]
{filters}
"""
SELECT = '[select]\ntuning = ["t.json"]'


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def choice_of(bundle):
    """What a bundle chooses for the problem that was measured."""
    a = cutlass_aot.describe((PROBLEM.m, PROBLEM.k), "f64")
    b = cutlass_aot.describe((PROBLEM.k, PROBLEM.n), "f64", strides=(1, PROBLEM.k))
    out = cutlass_aot.describe((PROBLEM.m, PROBLEM.n), "f64")
    return cutlass_aot.open(bundle).choose(a, b, out, gpu=GPU)


class Builder:
    """Builds in a folder, with a store that all builds share."""

    def __init__(self, root):
        self.root = root

    def manifest(self, select, filters):
        path = self.root / "m.toml"
        path.write_text(MANIFEST.format(select=select, filters=filters))
        return path

    def __call__(self, out, select="", filters=""):
        path = self.manifest(select, filters)
        settings = Settings(self.root / "store", 2, 300, PlainReport())
        return pipeline.build(path, self.root / out, settings)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return Builder(tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="module")
def untuned(build):
    return cutlass_aot.open(build("untuned").bundle)


@pytest.fixture
def measured(untuned, build):
    """Times of all kernels, which are in the file that the manifest names."""
    made = tuning([tuned_group([handle.entry for handle in untuned.kernels()])])
    write_tuning(made, build.root / "t.json")
    return made


def test_the_bundle_is_as_if_the_file_were_applied(build, untuned, measured, tmp_path):
    result = build("tuned", SELECT)
    assert (result.compiled, result.written) == (0, True)
    assert verify_bundle(result.bundle) == []
    apply_tuning(untuned.path, measured, tmp_path / "applied")
    assert tree(result.bundle) == tree(tmp_path / "applied")

    choice = choice_of(result.bundle)
    assert (choice.tier, choice.kernel.digest) == ("tuned", measured.groups[0].problems[0].ranked[0][0])

    # Nothing to do, until the file is another.
    assert not build("tuned", SELECT).written
    write_tuning(replace(measured, date="2027-01-01"), build.root / "t.json")
    assert build("tuned", SELECT).written
    # Without the line the bundle is what it was.
    assert build("tuned").written
    assert tree(result.bundle) == tree(untuned.path)


def test_other_code_is_refused_with_the_versions(build, untuned, measured):
    group = measured.groups[0]
    kernels = tuple(replace(kernel, object_sha256=digest(b"other")) for kernel in group.kernels)
    other = replace(
        measured, groups=(replace(group, kernels=kernels),), versions={"nvidia-cutlass-dsl": "4.7.0"}
    )
    write_tuning(other, build.root / "t.json")
    version = untuned.catalog.provenance["nvidia-cutlass-dsl"]
    with pytest.raises(ManifestError) as caught:
        build("refused", SELECT)
    assert str(caught.value).startswith(
        f"{build.root / 'm.toml'}: select.tuning: t.json: the tuning file has "
    )
    assert f"it was measured with nvidia-cutlass-dsl 4.7.0, expected {version}; leave the file out" in (
        str(caught.value)
    )
    assert not (build.root / "refused").exists()


def test_times_of_kernels_that_are_not_selected_are_left_out(build, untuned, measured, capsys):
    result = build("part", SELECT, "max_per_group = 1")
    count = len(untuned.kernels())
    notice = f"select.tuning: t.json: {count - 1} of the {count} kernels that it has times of are not in this"
    assert notice in capsys.readouterr().err
    (kernel,) = cutlass_aot.open(result.bundle).kernels()
    choice = choice_of(result.bundle)
    assert (choice.tier, choice.kernel.digest) == ("tuned", kernel.kernel.digest)


def test_a_file_of_other_kernels_is_refused_before_anything_is_compiled(build, untuned, measured):
    group = measured.groups[0]
    write_tuning(replace(measured, groups=(replace(group, digest=digest(b"other")),)), build.root / "t.json")
    path = build.manifest(SELECT, "")
    with pytest.raises(
        ManifestError, match=r"t\.json: .* which this build does not have: leave the file out"
    ):
        pipeline.make_plan(path, Settings(build.root / "empty", 1, 300, PlainReport()))
    with pytest.raises(ManifestError, match="which this build does not have"):
        build("refused", SELECT)


def test_a_file_that_is_none_is_refused(build):
    (build.root / "t.json").write_text("{}")
    with pytest.raises(CorruptFile, match=r"t\.json is not a 'cutlass-aot tuning' file"):
        build("refused", SELECT)
    (build.root / "t.json").unlink()
    with pytest.raises(ManifestError, match=r"select\.tuning: t\.json: cannot be read: No such file"):
        build("refused", SELECT)
