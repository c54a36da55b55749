"""Reads and writes safetensors files with the `safetensors` package."""

import torch
from safetensors.torch import load_file, save

from . import files

# Suffix of the name of an int8 matrix's scales: one float32 number for each row (docs/checkpoints.md).
SCALE = "_scale"
LARGEST = 127  # integer of a row's largest magnitude
# The same in a table of n-grams. Smaller integers compress better. Half of the default model's weights are such tables, and the
# crate that contains it must stay below crates.io's limit of 10 MiB. This costs the model 0.0001 bits a byte.
LARGEST_OF_NGRAMS = 31


def read(path):
    """Returns all tensors of the file by name; bfloat16 and int8 are widened to float32."""
    tensors = load_file(path)
    for name in [name for name, tensor in tensors.items() if tensor.dtype == torch.int8]:
        scales = tensors.pop(name + SCALE, None)
        shape = tensors[name].shape[:1]
        if scales is None or scales.dtype != torch.float32 or scales.shape != shape:
            found = "none" if scales is None else f"{scales.dtype} {list(scales.shape)}"
            raise ValueError(f"{path}: {name}{SCALE}: expected float32 scales of shape {list(shape)}, found {found}")
        tensors[name] = tensors[name].float() * scales[:, None]
    return {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in tensors.items()}


def quantized(matrix, largest=LARGEST):
    """Rounds a matrix (rows, columns) to int8. Returns the integers (rows, columns) and the scales (rows).

    A scale maps the largest magnitude of its row to `largest`. With 127, serving with `--dtype int8` gives the same integers, because
    the server's kernels also multiply with the inverse of the scale and round ties to even. A row of zeros has the scale 1. Raises
    ValueError for numbers that are not finite.
    """
    if not matrix.isfinite().all():
        raise ValueError("expected finite weights")
    scales = matrix.abs().amax(1) / largest
    usable = (1 / scales).isfinite()
    scales = torch.where(usable, scales, 1.0)
    inverses = torch.where(usable, 1 / scales, 0.0)
    return (matrix * inverses[:, None]).clamp(-largest, largest).round().to(torch.int8), scales


def write(path, tensors, matrices="f32"):
    """Writes tensors as float32; with `matrices="bf16"`, tensors of two or more axes as bfloat16.

    With `matrices="int8"`, tensors of two axes become int8 with a scale for each row; tables of n-grams use integers up to 31. The
    package orders tensors by type, then by name. The complete file replaces `path`, so that no reader opens an incomplete file.
    """
    stored = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        if matrices == "int8" and tensor.dim() == 2:
            largest = LARGEST_OF_NGRAMS if name.startswith("ngrams.") else LARGEST
            stored[name], stored[name + SCALE] = quantized(tensor.float(), largest)
            continue
        dtype = torch.bfloat16 if matrices == "bf16" and tensor.dim() >= 2 else torch.float32
        # A copy, because the package rejects tensors that share memory.
        stored[name] = torch.empty(tensor.shape, dtype=dtype).copy_(tensor)
    # Not `save_file`, which makes the file readable by its owner only: a server may run as another user.
    files.replace(path, save(stored))
