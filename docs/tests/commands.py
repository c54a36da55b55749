"""Lists for each command of the documentation how the tests treat it. Most commands run unchanged, in the order of their page.

A command is a line of a shell block without its comment, or a Python block. The first line of a Python block identifies it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Dict, List, Tuple, Union

# Replacements in a command (old text, new text): they fill in placeholders and shorten the run.
Swaps = Tuple[Tuple[str, str], ...]


@dataclass(frozen=True)
class Runs:
    """A command that must succeed and print text that matches `printed`."""

    command: str
    printed: str = r".*"
    swaps: Swaps = ()
    #: A file that the command writes, and the pattern of its content.
    writes: Tuple[str, str] = ("", "")
    #: A package without which the command is not run. Tests install no packages of gigabytes.
    needs: str = ""


@dataclass(frozen=True)
class Serves:
    """A server on free ports. Later commands call it in place of the addresses that they name."""

    command: str
    swaps: Swaps = ()
    #: True if the page assumes this server and does not list its command.
    granted: bool = False


@dataclass(frozen=True)
class Elsewhere:
    """A command that these tests do not run, with the reason."""

    command: str
    why: str


Step = Union[Runs, Serves, Elsewhere]

BUILT = "the tests run after the build"
EXAMPLES = "tests/weir/examples.rs runs the examples"
CI = ".ci runs it"
DOCKER = "the tests have no Docker; tests/weir/operations.rs checks the image's settings"
EDITOR = "it waits for an editor; tests/weir/lsp.rs starts it"
CLUSTER = "the tests have no cluster; deploy/tests checks the manifests against their schemas"
RAY = "deploy/tests/test_ray.py runs it if Ray is installed, which has hundreds of megabytes"
SYSTEMD = "the tests change no system; .ci/package installs the package into a folder, and tests/weir/process.rs checks the unit"
PROXIES = "deploy/tests/test_proxies.py runs it with its own replicas"
LONG = "it takes ten minutes on an idle machine"
TITLE = "What pooling is worth: two pairs of trained models"
PACKAGES = "it needs a release build; .ci/run calls `.ci/package dev`, and deploy/tests/test_packages.py checks the packages' files"
FULL = ".ci/full runs it"
FUZZ = "it runs for minutes; .ci/full runs ten seconds of each target"
PULL = "it needs the network; tests/weir/pull.rs runs it with a local server"
TORCH = "it needs PyTorch and runs for hours"

HTTP = "--http-listen 127.0.0.1:800{0} --admin-listen 127.0.0.1:909{0}"
TEXT = ".+"
NUMBER = r"\d+(?:\.\d+)?"
SEGMENTS = re.escape("a │weir │pools │a │stream…\n21 symbols, 4 closed segments, shortening factor 5.250\n")
SHIPPED = "models/hourglass-english"
SEGMENT = f'weir segment --model {SHIPPED} --text "a weir pools a stream"'
INSTALL = "pip install ./clients/python"
TOKEN = "a-token-of-sixteen-or-more"
# Runs an example with this Python and the address of the test's server.
EXAMPLE = (("python3", sys.executable), (".py ", ".py --address 127.0.0.1:50051 "))
# Replaces a shape by a shape of the same kind with small matrices.
FLAN = (("flan", "golden/t5/t5_v10"),)
TOKENS = (("path/to/folder", "golden/hugging-face/llama"),)
BLT = (("path/to/blt-1b-hf", "golden/blt/base"),)
SMALL = (("models/shapes/", "small/"),)
BOOK = (("book-summary", "SUMMARIZER"),)
# Flags that shorten a measurement to seconds.
PAIRS = "--rounds 4 --warm-up-rounds 1 --output-chars 8 --score-chars 64"


def bench(command: str, *swaps: Tuple[str, str]) -> Runs:
    """Returns a benchmark with all of its options, shortened by `swaps`."""
    models = (("DIR_A", SHIPPED), ("DIR_B", "POOLED"), ("DIR", SHIPPED))
    filled = [swap for swap in models if re.search(rf"\b{swap[0]}\b", command) and swap[0] not in dict(swaps)]
    return Runs(command, r".+", (*((bracket, "") for bracket in "[]" if bracket in command), *swaps, *filled))


def converts(command: str, source: str) -> Runs:
    """Returns a conversion of a checkpoint in this repository."""
    named = command.split()[-2]
    path = f"golden/{source}/{named}" if named.endswith(".pt") else f"golden/{source}"
    return Runs(command, rf".*\b{command.split()[-1]}: .*", ((named, path),))


PAGES: Dict[str, List[Step]] = {
    "README.md": [
        Elsewhere("$ cargo install --path . --locked", BUILT),
        Runs(
            "$ echo 'The goverment did not recieve it.' | weir check",
            "-:1:5: goverment → government\n-:1:23: recieve → receive, relieve\n",
        ),
        Serves("$ weir serve"),
        Serves("weir serve --model models/compared/hourglass-english-vanilla --model models/hourglass-english &"),
        Runs(
            "weir-loadtest compare --wait 60s --models hourglass-english-vanilla,hourglass-english",
            ".*hourglass-english-vanilla.*hourglass-english.*",
            (("--models", f"127.0.0.1:50051 {PAIRS} --models"),),
        ),
        Elsewhere("weir pull hf:pszemraj/long-t5-tglobal-base-16384-book-summary --name book-summary", PULL),
        Runs(
            "weir summarize --model book-summary --file article.txt --long-documents chunk",
            ".+",
            (("book-summary", "SUMMARIZER"),),
        ),
    ],
    "CONTRIBUTING.md": [
        Elsewhere("cargo test", CI),
        Elsewhere("cargo test -p weir-engine", CI),
        Elsewhere(".ci/run", CI),
        Elsewhere(".ci/full", FULL),
        Elsewhere(".ci/deny", CI),
        Elsewhere(".ci/proto", CI),
        Elsewhere(".ci/python", CI),
        Elsewhere(".ci/package", PACKAGES),
        Elsewhere("ln -s ../../.ci/commit-msg .git/hooks/commit-msg", "it changes the repository's hooks"),
        Elsewhere("cargo test --test simulation", CI),
        Elsewhere("WEIR_SEED=7 cargo test --test simulation replay -- --nocapture", CI),
        Elsewhere("cargo test --manifest-path tests/interleavings/Cargo.toml", CI),
        Elsewhere("cargo +nightly miri test --manifest-path tests/interleavings/Cargo.toml", FULL),
        Elsewhere(".ci/fuzz", FULL),
        Elsewhere(".ci/fuzz 600 pickle", FUZZ),
    ],
    "clients/python/README.md": [
        Elsewhere(INSTALL, CI),
        Elsewhere("pip install -e './clients/python[test]'", CI),
        Elsewhere("cd clients/python && mypy && python -m pytest", CI),
        Elsewhere("python tools/generate.py", "clients/python/tests/test_messages.py generates the same files and compares them"),
    ],
    "docs/benchmarking.md": [
        bench(
            f"weir bench decode --model {SHIPPED} --batch 1,8 --context 512", ("--context 512", "--context 32 --steps 4")
        ),
        Runs("weir init --config models/shapes/hourglass-41m.json pooled", ".*pooled.*", SMALL),
        Runs("weir init --config models/shapes/vanilla-41m.json vanilla", ".*vanilla.*", SMALL),
        bench(
            "weir bench compare pooled vanilla --batch 1,8 --context 512",
            ("--context 512", "--context 32 --steps 4 --pairs 2"),
        ),
        Serves("weir serve --model pooled --model vanilla &"),
        Runs(
            "weir-loadtest run 127.0.0.1:50051 --model pooled --concurrency 8",
            ".*pooled.*",
            (("--concurrency 8", "--concurrency 2 --warm-up 0s --duration 1s --output-chars 8"),),
        ),
        Runs(
            "weir-loadtest compare 127.0.0.1:50051 --models vanilla,pooled",
            ".*vanilla.*pooled.*",
            (("--models", f"{PAIRS} --models"),),
        ),
        Serves("weir serve --model models/hourglass-english --dtype int8 &"),
        Runs(
            "weir-loadtest run 127.0.0.1:50051 --concurrency 16 --requests 16 --warm-up 0 "
            "--workload kind=edit,prompt-chars=10000,pause=10s",
            r".*keystroke to completions .*\b12 keystrokes: .* 0 failed; .* % by the first three\).*",
            (
                ("--concurrency 16 --requests 16", "--concurrency 2 --requests 2"),
                ("prompt-chars=10000,pause=10s", "prompt-chars=60,output-chars=6,rate=4"),
            ),
        ),
        Elsewhere('cargo build --release --workspace && PATH="$PWD/target/release:$PATH"', BUILT),
        Elsewhere(
            "taskset -c 0 weir serve --threads 1 --model models/compared/hourglass-english-vanilla --model models/hourglass-english "
            "--model models/compared/summarizer-blockwise --model models/compared/summarizer-pyramidion &",
            LONG,
        ),
        Elsewhere(
            "taskset -c 1 weir-loadtest report --wait 60s --prompts cased.test.txt --score-chars 2000000 --timeout 10m "
            "--workload kind=generate,name=texts,prompt-chars=256,output-chars=256 "
            "--workload kind=summarize,name=documents,prompt-chars=20000,output-chars=64 "
            "--warm-up 1s --concurrency 1,2,4,8 --duration 6s --rounds 24 --refine 1 --note 'the machine, and what else ran on it' "
            f"--title '{TITLE}' --markdown docs/latency-report.md --json docs/latency-report.json",
            LONG,
        ),
        Elsewhere("cd models && python -m training.figures", "models/training/tests/test_figures.py runs it"),
        Serves("weir serve --admin-token-file token", granted=True),
        Runs("weir report 127.0.0.1:50051", ".*hourglass-english.*"),
        Runs(
            "weir admin reset-report 127.0.0.1:50051",
            swaps=(("reset-report", "reset-report --admin-token-file token"),),
        ),
    ],
    "docs/benchmarks.md": [
        Elsewhere("pip install -r benches/against_transformers-requirements.txt", "it installs PyTorch"),
        Elsewhere("python benches/against_transformers.py --weir target/release/weir --context 512", "it needs PyTorch"),
        Elsewhere("weir init --config models/shapes/blt-1b.json --dtype int8 blt-1b", "it writes gigabytes"),
        Elsewhere(
            "weir bench decode --model blt-1b --dtype int8 --batch 1,8 --context 64 --steps 150 --boundary-threshold 3.4",
            "it needs a model of gigabytes",
        ),
        Elsewhere(
            "weir bench prefill --model blt-1b --dtype f32,int8 --symbols 2048 --chunk 2048", "it needs a model of gigabytes"
        ),
    ],
    "docs/checkpoints.md": [
        converts("weir convert --from dynamic-pooling checkpoint_last.pt english", "dynamic-pooling-pt/plain"),
        converts("weir convert --from torchscale checkpoint_last.pt lex", "torchscale-pt/rope_bca"),
        converts("weir convert --from gpt2 SOURCE gpt2", "lslm/gpt2"),
        converts("weir convert --from lslm SOURCE segments", "lslm/dp"),
        converts("weir convert --from hnet SOURCE bytes", "hnet/one_stage"),
        converts("weir convert --from pyramidions checkpoint_best.pt summarizer", "pyramidion-pt/arguments"),
        converts("weir convert --from t5 FOLDER t5", "t5/t5_v10"),
        converts("weir convert --from mrt5 FOLDER mrt5", "t5/mrt5"),
        converts("weir convert --from blt FOLDER blt", "blt/base"),
        Runs("weir init --config models/shapes/hourglass-41m.json random", ".*random.*", SMALL),
        Serves("weir serve --model random"),
        Runs("weir verify --model english", r"english: hourglass, f32, 160 symbols\n.*boundaries +agree.*verified\n"),
        Runs(
            "weir verify --model english --file text.txt --dtype bf16",
            r"english: hourglass, bf16, 60 symbols\n.*verified\n",
            (("--file text.txt", "--ids " + ",".join(["1", "2", "0"] * 20)),),
        ),
    ],
    "docs/clients.md": [
        Serves("weir serve", granted=True),
        Runs("from openai import OpenAI", r".{20,40}\n", needs="openai"),
        Runs("from langchain_openai import OpenAI", r".{20,40}\n", needs="langchain_openai"),
        Elsewhere("from litellm import text_completion", "docs/tests/test_litellm.py runs it"),
        Elsewhere("import json", "docs/tests/test_lm_eval.py runs it"),
        Elsewhere(
            "lm_eval run --model local-completions --tasks TASKS --model_args "
            "'model=hourglass-whitespace-english,base_url=http://127.0.0.1:8000/v1/completions,tokenizer=symbols,"
            "max_length=512,eos_string=|'",
            "docs/tests/test_lm_eval.py runs it with tasks of its own",
        ),
        Elsewhere("promptfoo eval", "docs/tests/test_promptfoo.py runs it where promptfoo is installed"),
        Runs("from tokenizers import Tokenizer, decoders, models, pre_tokenizers", needs="guidellm"),
        Runs(
            "guidellm run --backend kind=openai_http,target=http://127.0.0.1:8000,request_format=/v1/completions "
            "--tokenizer kind=huggingface_auto,model=characters "
            "--data kind=synthetic_text,prompt_tokens=256,output_tokens=128 --profile kind=concurrent,streams=4 "
            "--constraint kind=max_requests,count=200 --disable-progress",
            r".*Benchmarking complete, generated 1 benchmark.*",
            (("count=200", "count=8"),),
            needs="guidellm",
        ),
        Runs(
            "aiperf profile --url http://127.0.0.1:8000 --model hourglass-english --endpoint-type completions "
            "--streaming --tokenizer characters --use-server-token-count --isl 256 --osl 128 "
            "--extra-inputs ignore_eos:true --concurrency 4 --request-count 200 --ui none",
            r".*Output Sequence Length \(tokens\) │ +128\.00.*Request Error Rate \(%\) │ +0\.00.*",
            (("--request-count 200", "--request-count 8"),),
            needs="aiperf",
        ),
        Runs("import json, numpy, tritonclient.grpc as triton", r"the history of .{20,40}\n"),
        Runs("import asyncio", r"the history of .{20,40}\n", needs="kserve"),
        Runs(
            "curl -s http://127.0.0.1:8000/v2/models/hourglass-english/infer -H 'content-type: application/json' "
            """-d '{"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["the history of "]}]}'""",
            r'\{.*"data":\["the history of .*"\].*\}',
        ),
    ],
    "docs/codec.md": [
        Runs(
            f"weir compress --model {SHIPPED} article.txt article.weir",
            rf"article\.weir: \d+ bytes, \d+ symbols in 1 block; \d+ bytes compressed, {NUMBER} bits per symbol\n"
            r"\d+ symbols per second\n",
        ),
        Runs(
            f"weir decompress --model {SHIPPED} article.weir article.out",
            r"article\.out: .*\d+ symbols per second\n",
            writes=("article.out", r"the river is pooling, the rest is going on .+ stone bridge\. "),
        ),
        Serves("weir serve", granted=True),
        Runs(
            "curl -s 'http://127.0.0.1:8000/v1/compress?model=hourglass-english' -H 'content-type: application/octet-stream' "
            "--data-binary @article.txt -o article.weir",
            "",
        ),
        Runs(
            "curl -s http://127.0.0.1:8000/v1/decompress -H 'content-type: application/octet-stream' "
            "--data-binary @article.weir -o article.txt",
            "",
            writes=("article.txt", r"the river is pooling, the rest is going on .+ stone bridge\. "),
        ),
    ],
    "docs/deploy.md": [
        Elsewhere("docker build -t weir .", DOCKER),
        Elsewhere("docker run --read-only -p 50051:50051 -p 8000:8000 -p 127.0.0.1:9090:9090 weir", DOCKER),
        Elsewhere("docker run --read-only -p 50051:50051 -v /srv/models:/models:ro weir", DOCKER),
        Elsewhere("docker buildx imagetools inspect debian:bookworm-slim --format '{{.Manifest.Digest}}'", DOCKER),
        Elsewhere("docker build -t weir --build-arg BASE_IMAGE=debian:bookworm-slim@sha256:DIGEST .", DOCKER),
        Elsewhere("sudo apt install ./target/packages/weir_0.1.0-1_amd64.deb", SYSTEMD),
        Elsewhere("sudoedit /etc/default/weir", SYSTEMD),
        Elsewhere("sudo systemctl enable --now weir", SYSTEMD),
        Elsewhere("sudo systemctl reload weir", SYSTEMD),
        Elsewhere("openssl rand -hex 32 > token", "the tests have a token"),
        Serves("weir serve --admin-token-file token &"),
        Elsewhere("export WEIR_ADMIN_TOKEN=$(cat token)", "the environment of the tests has it"),
        Runs("weir admin load 127.0.0.1:50051 hourglass-english --name english", ".*english.*"),
        Runs("weir admin load 127.0.0.1:50051 --name english", ".*english.*"),
        Runs("weir admin list 127.0.0.1:50051", ".*english.*"),
        Runs("weir admin unload 127.0.0.1:50051 english"),
        Serves(f"weir serve --late-headers --listen 127.0.0.1:50051 {HTTP.format(1)} &"),
        Serves(f"weir serve --late-headers --listen 127.0.0.1:50052 {HTTP.format(2)} &"),
        Elsewhere("nginx -p /tmp -c \"$PWD/deploy/nginx.conf\" -g 'daemon off;'", PROXIES),
        Elsewhere("haproxy -db -f deploy/haproxy.cfg -f deploy/haproxy-http.cfg", PROXIES),
        Elsewhere('Client("dns:///weir:50051", balance="round_robin")', "deploy/tests/test_guide.py runs it"),
        Elsewhere(
            "docker build -t registry.example.org/weir:0.1.0 . && docker push registry.example.org/weir:0.1.0", DOCKER
        ),
        Elsewhere(
            "helm upgrade --install weir deploy/helm/weir --set image.repository=registry.example.org/weir "
            "--set image.digest=sha256:DIGEST",
            CLUSTER,
        ),
        Elsewhere("kustomize edit set image weir=registry.example.org/weir@sha256:DIGEST", CLUSTER),
        Elsewhere("kubectl apply -k deploy/kubernetes", CLUSTER),
        Elsewhere(
            "helm upgrade --install prometheus-adapter prometheus-community/prometheus-adapter "
            "-f deploy/kubernetes/prometheus-adapter.yaml",
            CLUSTER,
        ),
        Elsewhere("kubectl set env deployment/weir WEIR_HTTP_METRICS=open", CLUSTER),
        Elsewhere("kubectl apply -k deploy/kubernetes/gateway", CLUSTER),
        Elsewhere('pip install "ray[serve]"', RAY),
        Elsewhere("serve run --app-dir deploy/ray weir_app:app", RAY),
    ],
    "docs/editors.md": [
        Elsewhere("weir lsp", EDITOR),
        Elsewhere("weir lsp --model models/hourglass-english --dtype int8 --threads 2 --count 5", EDITOR),
        Elsewhere("weir lsp --server https://weir.example.org --tls-ca ca.pem --api-key-file key", EDITOR),
        Serves("weir serve", granted=True),
        Runs("from weir_client import Client", r"\[(?:'\w+'|\"\w+'\w*\")(?:, (?:'\w+'|\"\w+'\w*\")){2}\]\n"),
    ],
    "docs/embedding.md": [
        Elsewhere('cargo run --release --example embed -- "the history of the city"', EXAMPLES),
        Elsewhere('cargo run --release --example stream -- "the river " "the castle " "a new law "', EXAMPLES),
        Elsewhere('cargo run --release --example score -- "the history of the city"', EXAMPLES),
    ],
    "docs/guide.md": [
        Serves("weir serve"),
        Runs(
            "curl -s http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' "
            """-d '{"prompt": "the history of ", "max_tokens": 40, "seed": 1}'""",
            r'\{.*"completion_tokens":40,.*\}',
        ),
        Runs(
            'weir generate --server 127.0.0.1:50051 --prompt "the history of " --max-chars 40 --seed 1',
            r".{20,40}\n",
        ),
        Runs("from weir_client import Client", r".{20,40}\n"),
        Runs(
            'weir generate --server 127.0.0.1:50051 --prompt "The war began in " --regex "(January|May|October) 1[89][0-9]{2}"',
            r"(January|May|October) 1[89]\d\d\n",
        ),
        Runs(
            "curl -s http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' "
            """-d '{"prompt": "A city: ", "structured_outputs": {"json": {"type": "object", "properties": {"name": """
            """{"type": "string"}, "founded": {"type": "integer"}}, "required": ["name", "founded"]}}}'""",
            r'\{.*"text":"\{\\"name\\": \\".*\}',
        ),
    ],
    "docs/models.md": [
        Elsewhere("weir pull hf:google/flan-t5-base --name flan", PULL),
        Runs("weir inspect flan", "checkpoint .*family +t5\n.*", FLAN),
        Runs("weir verify --model flan", r".*: t5, f32, .*verified\n", FLAN),
        Runs("weir summarize --model flan --file article.txt", ".+", (("--model flan", "--model SUMMARIZER"),)),
        converts("weir convert --from hnet SOURCE bytes", "hnet/one_stage"),
        Runs('weir generate --model bytes --prompt "The town was founded"', ".+", (("founded\"", "founded\" --max-chars 20"),)),
        Serves("weir serve --model path/to/blt-1b-hf --dtype int8", BLT),
        Runs(
            'weir segment --model path/to/blt-1b-hf --text "The town was founded" --json',
            r'.*"boundary_entropy".*',
            BLT,
        ),
        Runs(
            "weir bench decode --model path/to/blt-1b-hf --dtype int8 --boundary-threshold 1.0,1.335,2.0,3.0",
            rf".*threshold +bytes/segment +bits/byte.* 1.335 +{NUMBER} +{NUMBER}.*",
            (*BLT, ("--dtype int8", "--dtype int8 --context 8 --steps 8")),
        ),
        Serves(f"weir serve --model path/to/folder --model {SHIPPED}", TOKENS),
        Runs(
            "weir score --model path/to/folder --file text.txt",
            rf"\d+ symbols, {NUMBER} bits per character, {NUMBER} per byte, {NUMBER} per token, .*\n",
            (*TOKENS, ("--file text.txt", '--text "The town was founded"')),
        ),
    ],
    "docs/security.md": [
        Serves("weir serve --tls-cert server.pem --tls-key server.key"),
        Serves("weir serve --tls-cert server.pem --tls-key server.key --tls-client-ca clients.pem"),
        Runs(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=weir test authority' -keyout test-ca.key "
            "-out test-ca.pem",
            needs="openssl",
        ),
        Runs(
            "openssl req -x509 -CA test-ca.pem -CAkey test-ca.key -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost "
            "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout test.key "
            "-out test.pem",
            needs="openssl",
        ),
        Serves("weir serve --tls-cert test.pem --tls-key test.key"),
        Runs(
            'weir generate --server https://127.0.0.1:50051 --tls-ca test-ca.pem --prompt "the history " --max-chars 20',
            r".{10,20}\n",
            needs="openssl",
        ),
    ],
    "docs/summarize.md": [
        Elsewhere("weir pull hf:pszemraj/long-t5-tglobal-base-16384-book-summary --name book-summary", PULL),
        Runs("weir summarize --model book-summary --file article.txt", ".+", BOOK),
        Runs(
            "weir summarize --model book-summary --file article.txt --beam 4 --max-len 200 --long-documents chunk --json",
            r"\{.*\}\n",
            (*BOOK, ("--max-len 200", "--max-len 20")),
        ),
        Serves("weir serve --model book-summary --http-listen 127.0.0.1:8000", (("book-summary", "book-summary=SUMMARIZER"),)),
        Runs(
            "curl -s http://127.0.0.1:8000/v1/summaries -H 'content-type: application/json' "
            """-d '{"document": "A weir pools a stream and lets it flow on.", "max_tokens": 20, "long_documents": "chunk"}'""",
            r'\{.*"parts":\[\].*\}',
        ),
        Runs("from weir_client import Client", ".+"),
        Runs(
            "weir summarize --model models/compared/summarizer-pyramidion --file article.txt --mode extract --sentences 2",
            r".+\n",
        ),
        Runs(
            "weir summarize --model models/compared/summarizer-pyramidion --table summaries.test.jsonl "
            "--mode extract --sentences 1 --cut",
            r".*first sentences: ROUGE-1 .*all +1 .*",
            (("summaries.test.jsonl", "papers.jsonl"),),
        ),
        Runs("import openai", needs="openai"),
        Elsewhere("weir pull hf:stanfordnlp/mrt5-small --name mrt5", PULL),
        Runs(
            "weir bench documents mrt5 article.txt abstract.txt --tokens 64 --pairs 5",
            r"A: mrt5, B: mrt5-unpooled, .*all documents .*median document .*",
            (("mrt5", "golden/t5/mrt5"), ("--tokens 64 --pairs 5", "--tokens 4 --pairs 1")),
        ),
        Serves("weir serve mrt5 --unpooled-baselines", (("serve mrt5", "serve mrt5=golden/t5/mrt5"),)),
    ],
    "examples/stream.py": [
        Serves("weir serve &"),
        Runs(
            'python3 examples/stream.py "the history of the city" --max-chars 200 --temperature 0.7',
            r"the history of the city.{1,200}",
            EXAMPLE,
            needs="grpc_reflection",
        ),
    ],
    "examples/summarize.py": [
        Serves("weir serve --model models/compared/summarizer-pyramidion &"),
        Runs("python3 examples/summarize.py article.txt --beam 4", ".+", EXAMPLE, needs="grpc_reflection"),
    ],
    "models/training/README.md": [Elsewhere("pip install -r training/requirements.txt", TORCH)],
}
# The page whose other commands are all training commands.
TRAINING = "models/training/README.md"
