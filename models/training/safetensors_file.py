"""Reading and writing safetensors files, so that no package is needed for a format of twenty lines."""

import json
import os
import struct

import numpy
import torch

_READABLE = {"F32": numpy.float32, "F64": numpy.float64, "I32": numpy.int32, "I64": numpy.int64, "U8": numpy.uint8}


def read(path):
    """All tensors of the file by name."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        flat = numpy.frombuffer(data[start:end], dtype=_READABLE[entry["dtype"]])
        tensors[name] = torch.from_numpy(flat.reshape(entry["shape"]).copy())
    return tensors


def write(path, tensors):
    """Write f32 tensors, sorted by name; the file appears whole or not at all."""
    header, parts, offset = {}, [], 0
    for name in sorted(tensors):
        part = tensors[name].detach().cpu().float().contiguous().numpy().astype("<f4").tobytes()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors start at a multiple of eight
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.writelines(parts)
    os.replace(partial, path)
