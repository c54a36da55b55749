"""Tests checkpoints whose matrices are stored in int8."""

import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from training import checkpoint
from training.families import build
from training.safetensors_file import quantized, read, write
from training.tests.test_training import tiny


class Int8(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def test_only_matrices_are_rounded(self):
        torch.manual_seed(1)
        config = tiny()["model"]
        model = build(config)
        checkpoint.save(self.root / "int8", config, model.state_dict(), "int8")
        loaded, _ = checkpoint.load(self.root / "int8")
        for name, tensor in model.state_dict().items():
            found = loaded.state_dict()[name]
            if tensor.dim() != 2:
                self.assertTrue(torch.equal(found, tensor), name)
                continue
            step = tensor.abs().amax(1, keepdim=True) / 127
            self.assertTrue(bool(((found - tensor).abs() <= 0.5001 * step).all()), name)
        checkpoint.save(self.root / "f32", config, model.state_dict())
        sizes = [(self.root / name / "model.safetensors").stat().st_size for name in ("int8", "f32")]
        self.assertLess(sizes[0], 0.6 * sizes[1])  # half of the small file is its header

    def test_a_widened_matrix_is_rounded_to_the_same_integers(self):
        torch.manual_seed(2)
        matrix = torch.randn(50, 33) * 10.0 ** torch.arange(-25, 25)[:, None]
        integers, scales = quantized(matrix)
        self.assertTrue(bool((integers.abs().amax(1) == 127).all()))
        again, _ = quantized(integers.float() * scales[:, None])
        self.assertTrue(torch.equal(again, integers))

    def test_ties_and_rows_of_zeros(self):
        integers, scales = quantized(torch.tensor([[127.0, 0.5, -1.5, 2.5], [0.0, -0.0, 0.0, 0.0]]))
        self.assertEqual(integers.tolist(), [[127, 0, -2, 2], [0, 0, 0, 0]])
        self.assertEqual(scales.tolist(), [1.0, 1.0])

    def test_names_and_types_in_the_file(self):
        path = self.root / "model.safetensors"
        write(path, {"m.weight": torch.ones(3, 2), "b": torch.ones(3), "taps": torch.ones(2, 1, 2)}, "int8")
        stored = {name: (str(tensor.dtype), list(tensor.shape)) for name, tensor in load_file(path).items()}
        expected = {
            "m.weight": ("torch.int8", [3, 2]),
            "m.weight_scale": ("torch.float32", [3]),
            "b": ("torch.float32", [3]),
            "taps": ("torch.float32", [2, 1, 2]),
        }
        self.assertEqual(stored, expected)
        self.assertEqual(set(read(path)), {"m.weight", "b", "taps"})

    def test_scales_that_do_not_fit_are_refused(self):
        path = self.root / "model.safetensors"
        few, short = torch.ones(2), torch.ones(3).bfloat16()
        cases = ({}, "none"), ({"m_scale": few}, r"torch.float32 \[2\]"), ({"m_scale": short}, r"torch.bfloat16 \[3\]")
        for scales, found in cases:
            save_file({"m": torch.ones(3, 2, dtype=torch.int8), **scales}, path)
            with self.assertRaisesRegex(ValueError, rf"m_scale: expected float32 scales of shape \[3\], found {found}"):
                read(path)


if __name__ == "__main__":
    unittest.main()
