"""Checks the files of the crates, the Debian package and the wheel, without a build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, Dict, List, Set

import local
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 is needed to read Cargo.toml")

CRATES = {"weir": local.ROOT}
CRATES.update({f"weir-{folder.name}": folder for folder in sorted((local.ROOT / "crates").iterdir())})
CRATES.update({f"weir-{name}": local.ROOT / name for name in ("proto", "loadtest")})
MODEL = "models/hourglass-english"
MAX_FILES = 300
# The limit of crates.io for the compressed files.
MAX_BYTES = 10 << 20


def manifest(folder: Path) -> Dict[str, Any]:
    return tomllib.loads((folder / "Cargo.toml").read_text())


def packaged(crate: str) -> Set[str]:
    """Returns the files of a crate's package."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    command = ["cargo", "package", "--list", "--allow-dirty", "--offline"]
    listed = subprocess.run(command, cwd=CRATES[crate], capture_output=True, text=True, timeout=local.TIMEOUT)
    assert listed.returncode == 0, listed.stderr
    return set(listed.stdout.splitlines())


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_contains_what_its_sources_include(crate: str) -> None:
    folder, files = CRATES[crate], packaged(crate)
    sources = [name for name in files if name.endswith(".rs")]
    assert len(sources) > 3 and "Cargo.lock" in files
    assert len(files) < MAX_FILES, f"{crate} has {len(files)} files"
    # A symbolic link is packaged as what it names.
    packed = {(folder / name).resolve() for name in files}
    for name in sources:
        for path in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', (folder / name).read_text()):
            included = ((folder / name).parent / path).resolve()
            assert included in packed, f"{name} includes {path}, which the package of {crate} lacks"
    sizes = [len(zlib.compress((folder / name).read_bytes())) for name in files if (folder / name).is_file()]
    assert sum(sizes) < MAX_BYTES


def path_of(crate: str) -> str:
    return str(CRATES.get(crate, local.ROOT).relative_to(local.ROOT))


def test_a_crate_names_a_version_of_each_dependency() -> None:
    declared = manifest(local.ROOT)["workspace"]["dependencies"]
    for name, value in declared.items():
        # Without a version, a crate can only be built in this repository.
        assert not isinstance(value, dict) or ("version" in value and value.get("path") in (None, path_of(name))), name
    assert {name: declared[name]["version"] for name in CRATES if name in declared} == {
        name: version() for name in CRATES if name not in ("weir", "weir-loadtest")
    }


def test_one_crate_contains_one_model_and_none_contains_tests() -> None:
    model = {f"default-model/{path.name}" for path in (local.ROOT / MODEL).iterdir()}
    for crate in CRATES:
        folders = {name for name in packaged(crate) if "/" in name and name.split("/")[0] not in ("src", "benches", "examples")}
        if crate == "weir-models":
            assert folders == model
        elif crate not in ("weir-proto", "weir-loadtest"):
            assert not folders


def built(*arguments: str) -> Set[str]:
    """Returns the crates, with their features, that cargo builds."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    command = ["cargo", "tree", "--edges", "normal,build", "--prefix", "none", "--no-dedupe", "--format", "{p} {f}", "--offline", "--locked"]
    listed = subprocess.run([*command, *arguments], cwd=local.ROOT, capture_output=True, text=True, timeout=local.TIMEOUT)
    assert listed.returncode == 0, listed.stderr
    return set(listed.stdout.splitlines())


def test_a_build_after_one_of_the_workspace_builds_nothing_again() -> None:
    # A crate with other features would be built twice, and the program would not use what the tests of the workspace use.
    assert built("--package", "weir") <= built("--workspace")


def test_the_image_needs_the_files_that_are_copied() -> None:
    ignored = (local.ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (local.ROOT / "Dockerfile").read_text(), re.MULTILINE)
    kept = {name for line in copied for name in line.split()} - {"."}
    assert MODEL in kept and not any(name.startswith(line) for name in kept for line in ignored if line and line[0] not in "#*")
    models = {f"models/{path.name}" for path in (local.ROOT / "models").iterdir() if path.is_dir()}
    assert models - set(ignored) == {MODEL}


def version() -> str:
    found = manifest(local.ROOT)["workspace"]["package"]["version"]
    assert isinstance(found, str)
    return found


def test_the_debian_package_has_files_that_exist() -> None:
    deb = manifest(local.ROOT)["package"]["metadata"]["deb"]
    installed: Dict[str, List[Path]] = {}
    for source, place, _ in deb["assets"]:
        found = sorted(local.ROOT.glob(source)) if not source.startswith("target/") else [Path(source)]
        assert found, f"{source} matches no file"
        for path in found:
            installed.setdefault(place + path.name if place.endswith("/") else place, []).append(path)
    assert all(len(paths) == 1 for paths in installed.values())
    assert f"usr/share/weir/{MODEL}/model.safetensors" in installed
    assert all(name.lstrip("/") in installed for name in deb["conf-files"])
    units = local.ROOT / deb["systemd-units"]["unit-scripts"]
    # Without this folder, cargo-deb generates no scripts that reload systemd.
    assert (local.ROOT / deb["maintainer-scripts"]).is_dir()
    unit = (units / "weir.service").read_text()
    (started,) = re.findall(r"^ExecStart=/(\S+) serve$", unit, re.MULTILINE)
    (variables,) = re.findall(r"^EnvironmentFile=-/(\S+)$", unit, re.MULTILINE)
    assert started in installed and variables in installed


def test_the_server_accepts_the_settings_of_the_service() -> None:
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    text = (local.ROOT / "deploy/systemd/weir.default").read_text()
    # Examples that are commented out must be valid, too.
    variables = dict(re.findall(r"^#?(WEIR_\w+)=(\S+)$", text, re.MULTILINE))
    assert len(variables) >= 5
    variables["WEIR_MODELS"] = str(local.DEFAULT.parent)
    for wrong in ({}, {"WEIR_KV_MEMORY": "much"}):
        command = [str(program), "serve", "--check-config"]
        result = subprocess.run(command, env={**variables, **wrong}, capture_output=True, timeout=local.TIMEOUT)
        assert (result.returncode == 0) == (wrong == {}), result.stderr


def test_the_wheel_contains_this_program() -> None:
    folder = local.ROOT / "deploy/packaging/wheel"
    wheel = tomllib.loads((folder / "pyproject.toml").read_text())
    assert wheel["tool"]["maturin"]["bindings"] == "bin"
    assert (folder / wheel["tool"]["maturin"]["manifest-path"]).resolve() == local.ROOT / "Cargo.toml"
    assert wheel["project"]["dynamic"] == ["version"]
    assert wheel["project"]["license"] == manifest(local.ROOT)["workspace"]["package"]["license"]
    assert wheel["project"]["description"] == manifest(local.ROOT)["package"]["description"]
