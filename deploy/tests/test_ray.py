"""Runs `deploy/ray/weir_app.py` under Ray Serve, if Ray is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import local
import pytest


def test_completions_pass_through_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    app = local.ROOT / "deploy/ray"
    code = (
        f"import sys; sys.path.insert(0, {str(app)!r}); import ray; from ray import serve; import weir_app; "
        "ray.init(num_cpus=2, include_dashboard=False); "
        f"serve.start(http_options={{'port': {port}}}); serve.run(weir_app.app, blocking=True)"
    )
    settings = {
        "WEIR_PROGRAM": str(program),
        "WEIR_CORES": "1",
        "PYTHONPATH": str(app),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Two busy cores take longer than the usual five seconds.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **settings}, stdout=log, stderr=log)
        try:
            body = {"prompt": "the history of ", "max_tokens": 12, "seed": 1, "stream": True}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            deadline = time.monotonic() + 3 * local.TIMEOUT
            while True:
                try:
                    with urllib.request.urlopen(request, timeout=local.TIMEOUT) as answer:
                        assert answer.headers["content-type"].startswith("text/event-stream")
                        lines = answer.read().decode().splitlines()
                    break
                except (urllib.error.URLError, ConnectionError) as error:
                    log.seek(0)
                    assert process.poll() is None and time.monotonic() < deadline, (error, log.read()[-3000:])
                    time.sleep(0.5)
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            text = "".join(choice["text"] for event in events for choice in event["choices"])
            assert len(text.encode()) == 12 and lines[-2:][0] == "data: [DONE]", lines
            wrong = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions", b'{"prompt": 1}', {"content-type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(wrong, timeout=local.TIMEOUT)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
