#!/usr/bin/env python3
"""Compares weir with transformers on a Byte Latent Transformer with random weights, of about the sizes of models/shapes/blt-41m.json.

transformers writes a folder, which weir reads as it is, so both have the same weights in f32. The script compares the logits of a text,
then times how both continue it: transformers without its cache, because with it the logits are wrong. Needs the packages in
`against_transformers-requirements.txt` and nothing else running:

    pip install -r benches/against_transformers-requirements.txt
    python benches/against_transformers.py --weir target/release/weir --threads 2
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import BltConfig, BltForCausalLM

LOCAL = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 704, "cross_attn_k": 2}
CONFIG = {
    "patcher_config": {"hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": 704},
    "encoder_config": {**LOCAL, "num_hidden_layers": 1},
    "decoder_config": {**LOCAL, "num_hidden_layers": 5, "hidden_size_global": 512},
    "global_config": {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 8, "intermediate_size": 1408},
    "encoder_hash_byte_group_vocab": 3000,
    "cross_attn_k": 2,
}
TEXT = Path(__file__).parent.parent / "src/report/english.txt"
# Largest difference of logits, relative to the largest logit.
TOLERANCE = 5e-5
# Share of the text's bytes that end a patch.
SHARE = 0.25


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weir", type=Path, default=Path("target/release/weir"), help="release build of weir")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, nargs="+", default=[512, 2048], help="bytes before the timed ones")
    parser.add_argument("--turns", type=int, default=3, help="turns of the two programs; the figures are medians")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    text = [1, *(byte + 4 for byte in TEXT.read_bytes())]
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        model = made(Path(scratch), arguments.seed, text[:1024])
        folder = Path(scratch) / "model"
        compare(model, arguments.weir, folder, text[:300], Path(scratch))
        for context in arguments.context:
            ours, theirs = [], []
            for _ in range(arguments.turns):
                ours.append(weir(arguments.weir, folder, context, arguments.threads))
                theirs.append(transformers(model, text[: context + 1]))
            speed, patch = (statistics.median(figures) for figures in zip(*ours))
            other = statistics.median(theirs)
            print(
                f"context {context}: weir {speed:.0f} bytes/s at {patch:.2f} bytes a patch, "
                f"transformers without its cache {other:.1f} bytes/s, {speed / other:.0f} times"
            )


def made(scratch, seed, text):
    """Writes the folder: random weights, and the threshold above which `SHARE` of the text's entropies are."""
    torch.manual_seed(seed)
    model = BltForCausalLM(BltConfig(**CONFIG)).eval()
    for name, weights in model.named_parameters():
        if weights.dim() == 2:
            deviation = 1.0 if "embed" in name and "projection" not in name else weights.shape[1] ** -0.5
            # entropies then spread
            weights.normal_(0, 2.5 * deviation if name == "model.patcher.lm_head.weight" else deviation)
    logits = []
    hook = model.model.patcher.lm_head.register_forward_hook(lambda *call: logits.append(call[-1]))
    model(torch.tensor([text]), use_cache=False)
    hook.remove()
    logs = torch.log_softmax(logits[0][0].double(), -1)
    entropies = (logs.exp() * -logs).sum(-1).sort().values
    place = int(len(text) * (1 - SHARE))
    # in the widest of the gaps around
    gap = max(range(place - 10, place + 10), key=lambda at: entropies[at + 1] - entropies[at])
    model.config.patching_threshold = float((entropies[gap] + entropies[gap + 1]) / 2)
    model.save_pretrained(scratch / "model")
    return model


def compare(model, program, folder, text, scratch):
    theirs = model(torch.tensor([text]), use_cache=False).logits[0]
    for mode in ("full", "incremental", "chunked"):
        ids = ",".join(map(str, text))
        run(program, "score", "--model", folder, "--ids", ids, "--mode", mode, "--logits", scratch / "logits")
        ours = load_file(scratch / "logits")["logits"].reshape(theirs.shape)
        off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        print(f"{mode}: logits differ by at most {off:.1e} of the largest one", file=sys.stderr)
        if not off <= TOLERANCE:
            raise SystemExit(f"not the same model: logits differ by {off:.1e} of the largest one, more than {TOLERANCE}")


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def weir(program, folder, context, threads):
    """Returns weir's bytes a second, and bytes a patch."""
    options = ["--context", context, "--steps", 256, "--threads", threads]
    (figures,) = json.loads(run(program, "bench", "decode", "--model", folder, *options, "--json"))
    return figures["chars_per_second"], figures["shortening_factor"]


def transformers(model, text, count=5):
    """Returns the bytes a second at which transformers continues a text: a forward pass over all of it for each."""
    text = torch.tensor([text])
    model(text, use_cache=False)
    start = time.perf_counter()
    for _ in range(count):
        logits = model(text, use_cache=False, logits_to_keep=1).logits
        text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
