#!/usr/bin/env python3
"""Writes the descriptors and stubs in `src/weir_client/_proto` from the server's `.proto` files.

    python tools/generate.py            # needs grpcio-tools of the version that pyproject.toml names

`--out DIR` selects another folder. A test compares its files with the checked-in files.
"""

import argparse
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PROTO = HERE.parents[2] / "proto"
INTO = HERE.parent / "src/weir_client/_proto"
FILES = [
    "weir/v1/codec.proto",
    "weir/v1/editing.proto",
    "weir/v1/generation.proto",
    "weir/v1/latency.proto",
    "weir/v1/models.proto",
    "weir/v1/summarization.proto",
]


def generate(into: Path) -> None:
    """Writes `weir.binpb` and one stub for each file of FILES into the folder `into`."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        encoded = scratch / "weir.binpb"
        flags = [f"--proto_path={PROTO}", f"--pyi_out={scratch}", f"--descriptor_set_out={encoded}", "--include_imports"]
        if protoc.main(["protoc", *flags, *FILES]) != 0:
            raise SystemExit("protoc failed")
        # Encoded again, so that the order of the bytes does not depend on protoc's version.
        descriptors = descriptor_pb2.FileDescriptorSet.FromString(encoded.read_bytes())
        (into / "weir.binpb").write_bytes(descriptors.SerializeToString(deterministic=True))
        for file in FILES:
            name = Path(file).stem + "_pb2.pyi"
            stub = (scratch / Path(file).parent / name).read_text()
            # In this package the stubs import each other from their own folder.
            (into / name).write_text(stub.replace("from weir.v1 import ", "from . import "))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the descriptors and stubs of weir's messages.")
    parser.add_argument("--out", type=Path, default=INTO)
    generate(parser.parse_args().out)
