"""Fetches public packages once, with the clients of their registries, and unpacks them."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def fetch(package, registry, version, folder):
    """Returns the package's file in `folder` and fetches it if it is missing. Without a version, takes the distribution's version."""
    found = find(package, registry, folder)
    if found is None:
        commands = {
            "apt": ["apt-get", "download", package],
            "pip": [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{package}=={version}"],
            "npm": ["npm", "pack", "--silent", f"{package}@{version}"],
        }
        subprocess.run(commands[registry], cwd=folder, check=True)
        found = find(package, registry, folder)
    if found is None:
        raise FileNotFoundError(f"{package}: no file in {folder} after the download")
    return found


def find(package, registry, folder):
    patterns = {"apt": f"{package}_*.deb", "pip": f"{package.replace('-', '_')}-*.whl", "npm": f"{package}-*.tgz"}
    return next(iter(sorted(Path(folder).glob(patterns[registry]))), None)


def unpack(file, folder):
    folder.mkdir()
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
    elif file.suffix == ".tgz":
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
    else:
        subprocess.run(["dpkg-deb", "-x", file, folder], check=True)
    return folder
