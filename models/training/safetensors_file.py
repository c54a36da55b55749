"""Reading and writing safetensors files, so that no package is needed for a format of twenty lines."""

import json
import os
import struct

import numpy
import torch

_READABLE = {"F32": numpy.float32, "F64": numpy.float64, "I32": numpy.int32, "I64": numpy.int64, "U8": numpy.uint8}


def read(path):
    """All tensors of the file by name; bfloat16 is widened."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":  # the upper half of an f32
            flat = (numpy.frombuffer(data[start:end], dtype="<u2").astype(numpy.uint32) << 16).view(numpy.float32)
        else:
            flat = numpy.frombuffer(data[start:end], dtype=_READABLE[entry["dtype"]])
        tensors[name] = torch.from_numpy(flat.reshape(entry["shape"]).copy())
    return tensors


def write(path, tensors, matrices="f32"):
    """Write tensors, sorted by name, as f32; with `matrices` "bf16" those of two axes and more in that. The file appears whole or
    not at all."""
    header, parts, offset = {}, [], 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        if matrices == "bf16" and tensor.dim() >= 2:
            dtype, part = "BF16", tensor.bfloat16().view(torch.int16).numpy().astype("<i2").tobytes()
        else:
            dtype, part = "F32", tensor.float().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors start at a multiple of eight
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.writelines(parts)
    os.replace(partial, path)
