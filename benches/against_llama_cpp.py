#!/usr/bin/env python3
"""Compares weir's kernels with llama.cpp's on one model with random weights: 12 layers × 512, without pooling.

`weir init` makes the model. This script writes the same weights as GGUF files, checks that both programs give nearly the same
logits, and then times them in turns. A token is a symbol of the model's 27, so tokens a second are characters a second. Needs the
packages in `against_llama_cpp-requirements.txt` and nothing else running:

    pip install -r benches/against_llama_cpp-requirements.txt
    python benches/against_llama_cpp.py --weir target/release/weir --note "the machine" --out docs/llama-cpp.json

pip builds llama-cpp-python for this processor, which takes minutes. In llama.cpp each sequence has a cache of its own, keys and values
are f16, and flash attention is off.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPE = {
    "format": "weir/1",
    "family": "decoder",
    "vocabulary": {"symbols": list(" eainotsrhldcmufpgwybvkxjzq")},
    "normaliser": "text8",
    "training_length": 1024,
    "architecture": {
        "layers": 12,
        "dim": 512,
        "heads": 8,
        "head_dim": 64,
        "feed_forward": 2048,
        "activation": "gelu-tanh",
        "layer_norm_eps": 1e-5,
        "position": {"learned": {"positions": 1024}},
        "window": "full",
        "sub_norms": False,
        "scale_embedding": False,
        "tied": True,
    },
}
# weir's number types, and llama.cpp's with as many bits.
TYPES = {"f32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
# (sequences, threads)
LOADS = [(1, 1), (1, 2), (16, 2)]
CONTEXT, STEPS = 512, 64
# Largest difference of logits, relative to the largest logit. Both programs compute in f32, but llama.cpp's keys and values are f16.
TOLERANCE = 0.02
NAMES = {
    "attention.norm": "attn_norm",
    "attention.qkv": "attn_qkv",
    "attention.output": "attn_output",
    "feed_forward.norm": "ffn_norm",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weir", type=Path, default=Path("target/release/weir"), help="release build of weir")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON; default: standard output")
    parser.add_argument("--turns", type=int, default=3, help="turns of the two programs; the figures are medians of their ratios")
    parser.add_argument("--note", default="", help="the machine, and what else ran on it")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed steps of each measurement")
    parser.add_argument("--one", nargs=3, metavar=("GGUF", "SEQUENCES", "THREADS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        gguf, sequences, threads = arguments.one
        print(json.dumps(timed(gguf, int(sequences), int(threads), arguments.steps)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        found = measured(Path(scratch), arguments)
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def measured(scratch, arguments):
    """Makes the model in both formats, compares the logits, and times both programs."""
    model = made(scratch, arguments.weir)
    files = {dtype: written(model, scratch / f"{dtype}.gguf", kind) for dtype, kind in TYPES.items()}
    off = difference(model, files["f32"], arguments.weir, scratch)
    print(f"logits differ by at most {off:.1e} of the largest one", file=sys.stderr)
    if off > TOLERANCE:
        raise SystemExit(f"not the same model: logits differ by {off:.1e} of the largest one, more than {TOLERANCE}")
    speeds = {}
    for turn in range(arguments.turns):
        for sequences, threads in LOADS:
            for dtype, kind in TYPES.items():
                print(f"turn {turn + 1} of {arguments.turns}: {dtype}, {sequences} sequences, {threads} threads", file=sys.stderr)
                row = speeds.setdefault((sequences, threads, dtype, kind), {"weir": [], "llama_cpp": []})
                row["llama_cpp"].append(llama(files[dtype], sequences, threads, arguments.steps))
                row["weir"].append(weir(arguments.weir, model, dtype, sequences, threads, arguments.steps))
    import llama_cpp

    return {
        "note": arguments.note,
        "model": "12 layers × 512, learned positions, random weights; the same weights in both programs",
        "llama_cpp": f"llama-cpp-python {llama_cpp.__version__}",
        "context": CONTEXT,
        "turns": arguments.turns,
        "rows": [entry(*key, row) for key, row in speeds.items()],
    }


def entry(sequences, threads, dtype, kind, row):
    """Returns medians of both speeds, in characters a second, and the median and range of the turns' ratios."""
    ratios = sorted(ours / theirs for ours, theirs in zip(row["weir"], row["llama_cpp"]))
    return {
        "sequences": sequences,
        "threads": threads,
        "weir_type": dtype,
        "llama_cpp_type": kind.lower(),
        "weir": round(statistics.median(row["weir"])),
        "llama_cpp": round(statistics.median(row["llama_cpp"])),
        "ratio": round(statistics.median(ratios), 2),
        "low": round(ratios[0], 2),
        "high": round(ratios[-1], 2),
    }


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def made(scratch, program):
    (scratch / "shape.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    run(program, "init", "--config", scratch / "shape.json", scratch / "model")
    return scratch / "model"


def weir(program, model, dtype, sequences, threads, steps):
    """Returns weir's characters a second, all sequences together."""
    options = ["--batch", sequences, "--context", CONTEXT, "--steps", steps, "--threads", threads, "--dtype", dtype]
    (figures,) = json.loads(run(program, "bench", "decode", "--model", model, *options, "--json"))
    return figures["chars_per_second"]


def llama(gguf, sequences, threads, steps):
    """Returns llama.cpp's tokens a second, all sequences together, measured in a process of its own."""
    return json.loads(run(sys.executable, __file__, "--steps", steps, "--one", gguf, sequences, threads))["tokens_per_second"]


def tensors(folder):
    """Returns {name: array} of a safetensors file in f32."""
    import numpy

    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    head.pop("__metadata__", None)
    found = {}
    for name, facts in head.items():
        begin, end = (8 + size + offset for offset in facts["data_offsets"])
        found[name] = numpy.frombuffer(data[begin:end], dtype="<f4").reshape(facts["shape"])
    return found


def written(folder, target, kind):
    """Writes the model as GGUF: matrices of the layers and the embedding in `kind`, everything else in f32."""
    import gguf

    shape = SHAPE["architecture"]
    writer = gguf.GGUFWriter(target, "gpt2")
    writer.add_context_length(shape["position"]["learned"]["positions"])
    writer.add_embedding_length(shape["dim"])
    writer.add_feed_forward_length(shape["feed_forward"])
    writer.add_block_count(shape["layers"])
    writer.add_head_count(shape["heads"])
    writer.add_layer_norm_eps(shape["layer_norm_eps"])
    symbols = SHAPE["vocabulary"]["symbols"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["Ġ" if symbol == " " else symbol for symbol in symbols])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(symbols))
    writer.add_token_merges(["e a"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    own = {"embedding.weight": "token_embd.weight", "position.table": "position_embd.weight"}
    own |= {f"norm.{part}": f"output_norm.{part}" for part in ("weight", "bias")}
    for name, tensor in tensors(folder).items():
        if name in own:
            theirs = own[name]
        else:
            _, layer, rest = name.split(".", 2)
            part, end = rest.rsplit(".", 1)
            theirs = f"blk.{layer}.{NAMES[part]}.{end}"
        is_matrix = theirs.endswith(".weight") and tensor.ndim == 2 and "position" not in theirs
        type_ = gguf.GGMLQuantizationType[kind if is_matrix else "F32"]
        if type_ == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(theirs, tensor)
        else:
            writer.add_tensor(theirs, gguf.quants.quantize(tensor, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


class Context:
    """A llama.cpp context with `sequences` sequences, fed in steps of one token each."""

    def __init__(self, file, sequences, threads):
        import llama_cpp

        self._api = llama_cpp
        llama_cpp.llama_log_set(QUIET, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), params)
        if not self._model:
            raise SystemExit(f"{file}: llama.cpp cannot load it")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * 1024
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.flash_attn_type = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._batch = llama_cpp.llama_batch_init(sequences, 0, 1)
        self._sequences = sequences
        self._position = 0

    def feed(self, tokens):
        """Feeds a token to each sequence and computes the logits of each."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row] = token
            batch.pos[row] = self._position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = row
            batch.logits[row] = 1
        code = self._api.llama_decode(self._context, batch)
        if code != 0:
            raise SystemExit(f"llama_decode: {code}")
        self._position += 1

    def logits(self):
        """Returns the logits of the first sequence."""
        values = self._api.llama_get_logits_ith(self._context, 0)
        return [values[index] for index in range(len(SHAPE["vocabulary"]["symbols"]))]


QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


def symbol(sequence, position):
    return (sequence * 7 + position * 5 + position // 3) % len(SHAPE["vocabulary"]["symbols"])


def timed(file, sequences, threads, steps):
    """Times steps after the context."""
    context = Context(file, sequences, threads)
    for position in range(CONTEXT):
        context.feed([symbol(row, position) for row in range(sequences)])
    begun = time.perf_counter()
    for position in range(CONTEXT, CONTEXT + steps):
        context.feed([symbol(row, position) for row in range(sequences)])
    return {"tokens_per_second": sequences * steps / (time.perf_counter() - begun)}


def difference(model, file, program, scratch):
    """Returns the largest difference of the two programs' log-probabilities after 32 symbols, relative to the largest one."""
    import math

    text = "".join(SHAPE["vocabulary"]["symbols"][symbol(0, position)] for position in range(32))
    (scratch / "text.txt").write_text(text, encoding="utf-8")
    scored = json.loads(run(program, "score", "--model", model, "--file", scratch / "text.txt", "--json"))
    context, worst, largest = Context(file, 1, 1), 0.0, 0.0
    for position in range(31):
        context.feed([symbol(0, position)])
        logits = context.logits()
        total = max(logits) + math.log(sum(math.exp(value - max(logits)) for value in logits))
        theirs = logits[symbol(0, position + 1)] - total
        ours = scored["logprobs"][position]
        worst, largest = max(worst, abs(ours - theirs)), max(largest, abs(ours))
    return worst / largest


if __name__ == "__main__":
    main()
