#!/usr/bin/env python3
"""Writes the descriptors and stubs in `src/weir_client/_proto` from the server's `.proto` files.

    python tools/generate.py            # needs grpcio-tools of the version that pyproject.toml names

With `--out DIR` it writes elsewhere; a test compares that with what is checked in.
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
    "weir/v1/generation.proto",
    "weir/v1/latency.proto",
    "weir/v1/models.proto",
    "weir/v1/summarization.proto",
]


def generate(into: Path) -> None:
    """Writes `weir.binpb` and one stub for each of the files."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        encoded = scratch / "weir.binpb"
        flags = [f"--proto_path={PROTO}", f"--pyi_out={scratch}", f"--descriptor_set_out={encoded}", "--include_imports"]
        if protoc.main(["protoc", *flags, *FILES]) != 0:
            raise SystemExit("protoc failed")
        # Read and written again, so that the order of its bytes is ours and not that of protoc's version.
        descriptors = descriptor_pb2.FileDescriptorSet.FromString(encoded.read_bytes())
        (into / "weir.binpb").write_bytes(descriptors.SerializeToString(deterministic=True))
        for file in FILES:
            name = Path(file).stem + "_pb2.pyi"
            stub = (scratch / Path(file).parent / name).read_text()
            # The files import each other from where they stand here.
            (into / name).write_text(stub.replace("from weir.v1 import ", "from . import "))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the descriptors and stubs of weir's messages.")
    parser.add_argument("--out", type=Path, default=INTO)
    generate(parser.parse_args().out)
