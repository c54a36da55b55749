"""Reads and writes safetensors files with the `safetensors` package."""

import os

import torch
from safetensors.torch import load_file, save


def read(path):
    """Returns all tensors of the file by name; bfloat16 is widened to float32."""
    tensors = load_file(path)
    return {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in tensors.items()}


def write(path, tensors, matrices="f32"):
    """Writes tensors as float32; with `matrices="bf16"`, tensors of two or more axes as bfloat16.

    The package orders them by type, then by name. The complete file replaces `path`, so that no reader opens an incomplete file.
    """
    stored = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        dtype = torch.bfloat16 if matrices == "bf16" and tensor.dim() >= 2 else torch.float32
        # A copy, because the package rejects tensors that share memory.
        stored[name] = torch.empty(tensor.shape, dtype=dtype).copy_(tensor)
    partial = f"{path}.partial"
    # Not `save_file`, which makes the file readable by its owner only: a server may run as another user.
    with open(partial, "wb") as file:
        file.write(save(stored))
    os.replace(partial, path)
