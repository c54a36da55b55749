"""Tests a weir server with Triton's and KServe's clients from PyPI.

Covers unary and streamed inference, metadata calls and rejected requests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import queue
import re
import subprocess
import sys
from functools import partial
from typing import Any, AsyncIterator, Dict, Iterator, List, Tuple

import grpc
import local
import numpy
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor, triton_to_np_dtype

from weir_client import Client

MODEL = local.MODEL.name
PROMPT = "the history of "


@pytest.fixture(scope="module")
def server() -> Iterator[local.Server]:
    """A server with the model that most tests use."""
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with local.Server("--threads", "1", "--http-listen", "127.0.0.1:0") as server:
        yield server


def tensor(kind: Any, name: str, value: Any) -> Any:
    """Returns an input tensor of one element; `kind` is one of Triton's client modules."""
    flag = isinstance(value, bool)
    result = kind.InferInput(name, [1], "BOOL" if flag else "BYTES")
    result.set_data_from_numpy(numpy.array([value if flag else value.encode()], dtype=bool if flag else numpy.object_))
    return result


def array(name: str, datatype: str, values: List[Any]) -> Any:
    """Returns an input tensor of several elements."""
    result = triton.InferInput(name, [len(values)], datatype)
    result.set_data_from_numpy(numpy.array(values, dtype=triton_to_np_dtype(datatype)))
    return result


def inputs(kind: Any, prompt: str, stream: bool, **sampling: Any) -> List[Any]:
    """Returns the input tensors of one request."""
    return [
        tensor(kind, "text_input", prompt),
        tensor(kind, "stream", stream),
        tensor(kind, "sampling_parameters", json.dumps(sampling)),
    ]


def text_of(result: Any) -> str:
    """Returns the text of a response message."""
    text: str = result.as_numpy("text_output")[0].decode()
    return text


def is_last(result: Any) -> bool:
    """Returns whether a message is the last of its request."""
    last: bool = result.get_response().parameters["triton_final_response"].bool_param
    return last


def test_unary_answer_matches_weir_client(server: local.Server) -> None:
    with Client(server.address, timeout=local.TIMEOUT) as weir:
        expected = weir.generate(PROMPT, max_chars=40, seed=3, logprobs=True)
    with triton.InferenceServerClient(server.address) as client:
        result = client.infer(MODEL, inputs(triton, PROMPT, False, max_tokens=40, seed=3), request_id="7")
        assert (text_of(result), result.get_response().id) == (PROMPT + expected.text, "7")
        tensors = inputs(triton, PROMPT, False, max_tokens="40", seed="3") + [
            tensor(triton, name, True)
            for name in [
                "exclude_input_in_output",
                "return_finish_reason",
                "return_cumulative_logprob",
                "return_logprobs",
                "return_num_input_tokens",
                "return_num_output_tokens",
            ]
        ]
        result = client.infer(MODEL, tensors)
    assert text_of(result) == expected.text
    assert result.as_numpy("finish_reason")[0] == b"length"
    counts = [int(result.as_numpy(f"num_{side}_tokens")[0]) for side in ("input", "output")]
    assert counts == [len(PROMPT), 40]
    logprobs = [next(iter(entry.values())) for entry in json.loads(result.as_numpy("logprobs")[0])]
    assert [entry["decoded_token"] for entry in logprobs] == list(expected.text)
    assert result.as_numpy("cumulative_logprob")[0] == pytest.approx(sum(entry["logprob"] for entry in logprobs), abs=1e-3)


def test_several_requests_on_one_stream(server: local.Server) -> None:
    """Sends several requests on one stream, as Triton does: a callback fills a queue, and ids identify the requests."""
    answers: "queue.Queue[Tuple[Any, Any]]" = queue.Queue()
    with Client(server.address, timeout=local.TIMEOUT) as weir:
        expected = {str(seed): weir.generate(PROMPT, max_chars=60, seed=seed).text for seed in range(4)}
    with triton.InferenceServerClient(server.address) as client:
        client.start_stream(callback=partial(lambda to, result, error: to.put((result, error)), answers))
        for seed in range(4):
            tensors = inputs(triton, PROMPT, True, max_tokens=60, seed=seed)
            outputs = [triton.InferRequestedOutput("text_output")]
            client.async_stream_infer(
                MODEL, tensors, request_id=str(seed), outputs=outputs, enable_empty_final_response=seed % 2 == 1
            )
        # An invalid request fails alone and does not end the stream.
        client.async_stream_infer(MODEL, [tensor(triton, "image", "x")], request_id="wrong")
        texts: Dict[str, str] = dict.fromkeys(expected, "")
        ended = set()
        empty = set()
        errors = []
        while len(ended) < 4 or not errors:
            result, error = answers.get(timeout=local.TIMEOUT)
            if error is not None:
                errors.append(error)
                continue
            name = result.get_response().id
            assert name not in ended
            if result.get_response().outputs:
                texts[name] += text_of(result)
            else:
                empty.add(name)
            if is_last(result):
                ended.add(name)
        client.stop_stream()
    assert texts == expected
    assert empty == {"1", "3"}
    assert len(errors) == 1 and errors[0].message().startswith("inputs: expected one of text_input, ")


def test_the_asynchronous_client(server: local.Server) -> None:
    """Follows the example of Triton's vLLM backend: sampling parameters are strings, in a tensor and as parameters."""
    prompts = ["the history of ", "a river ", "in the city "]

    async def ask() -> Dict[str, List[str]]:
        texts: Dict[str, List[str]] = {str(number): [] for number in range(len(prompts))}
        sampling = {"temperature": "0.1", "top_p": "0.95", "max_tokens": "30"}

        async def requests() -> AsyncIterator[Dict[str, Any]]:
            for number, prompt in enumerate(prompts):
                yield {
                    "model_name": MODEL,
                    "inputs": inputs(triton_aio, prompt, True, **sampling),
                    "outputs": [triton_aio.InferRequestedOutput("text_output")],
                    "request_id": str(number),
                    "parameters": sampling,
                }

        async with triton_aio.InferenceServerClient(server.address) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                texts[result.get_response().id].append(text_of(result))
        return texts

    for parts in asyncio.run(ask()).values():
        assert len("".join(parts)) == 30


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(server: local.Server, algorithm: str) -> None:
    """The server returns the same text to a compressed request, unary or streamed."""
    tensors = inputs(triton, PROMPT, False, max_tokens=20, seed=1)
    answers: "queue.Queue[Tuple[Any, Any]]" = queue.Queue()
    with triton.InferenceServerClient(server.address) as client:
        expected = text_of(client.infer(MODEL, tensors))
        assert text_of(client.infer(MODEL, tensors, compression_algorithm=algorithm)) == expected
        client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm=algorithm)
        client.async_stream_infer(MODEL, inputs(triton, PROMPT, True, max_tokens=20, seed=1))
        streamed, last = "", False
        while not last:
            result, error = answers.get(timeout=local.TIMEOUT)
            assert error is None
            streamed, last = streamed + text_of(result), is_last(result)
        client.stop_stream()
    assert PROMPT + streamed == expected


def test_channel_options(server: local.Server) -> None:
    """The text does not depend on keepalive, channel options, headers, batch shape, reused tensors or callbacks."""
    pings = triton.KeepAliveOptions(2**31 - 1, 20000, False, 2)
    limits = [("grpc.max_send_message_length", 2**20), ("grpc.max_receive_message_length", 2**20)]
    arguments = [*limits, ("grpc.keepalive_time_ms", 2**31 - 1), ("grpc.http2.max_pings_without_data", 2)]
    tensors = inputs(triton, PROMPT, False, max_tokens=20, seed=1)
    batch = triton.InferInput("text_input", [1, 1], "BYTES")
    batch.set_data_from_numpy(numpy.array([[PROMPT.encode()]], dtype=numpy.object_))
    outputs, headers = [triton.InferRequestedOutput("text_output")], {"test": "1", "dummy": "2"}
    with triton.InferenceServerClient(server.address, keepalive_options=pings) as client:
        assert client.is_server_live(headers=headers)
        texts = {
            text_of(client.infer(MODEL, variant, outputs=outputs, headers=headers))
            for variant in (tensors, [batch, *tensors[1:]], tensors)
        }
        assert len(texts) == 1
    with triton.InferenceServerClient(
        server.address, channel_args=[*arguments, ("grpc.dns_enable_srv_queries", 1)]
    ) as client:
        answers: "queue.Queue[Tuple[Any, Any]]" = queue.Queue()
        for _ in range(4):
            client.async_infer(MODEL, tensors, lambda result, error: answers.put((result, error)), outputs=outputs)
        for _ in range(4):
            result, error = answers.get(timeout=local.TIMEOUT)
            assert error is None and text_of(result) in texts
        # The server reports the cancellation to the cancelled call only.
        endless = inputs(triton, PROMPT, False, max_tokens=8000)
        call = client.async_infer(MODEL, endless, lambda result, error: answers.put((result, error)))
        call.cancel()
        assert "cancelled" in str(answers.get(timeout=local.TIMEOUT)[1])
        with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
            client.infer(MODEL, endless, client_timeout=0.2)
        assert text_of(client.infer(MODEL, tensors)) in texts


def test_raw_stubs(server: local.Server) -> None:
    """Sends typed contents instead of raw bytes, through the stubs in Triton's package."""
    request = service_pb2.ModelInferRequest(model_name=MODEL, id="my request id")
    text_input = request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    text_input.contents.bytes_contents.append(PROMPT.encode())
    request.outputs.add(name="text_output")
    with grpc.insecure_channel(server.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL, version="")).ready
        answer = stub.ModelInfer(request, timeout=local.TIMEOUT)
    assert (answer.id, answer.model_name, len(answer.outputs), len(answer.raw_output_contents)) == (
        "my request id",
        MODEL,
        1,
        1,
    )
    (text,) = deserialize_bytes_tensor(answer.raw_output_contents[0])
    assert re.fullmatch(PROMPT + "[a-z ]{128}", text.decode())


# Runs in a separate process: KServe and Triton register protobuf messages of the same names.
KSERVE = f"""
import asyncio, grpc, sys
from kserve import InferInput, InferRequest, InferenceGRPCClient
async def ask():
    client = InferenceGRPCClient(sys.argv[1], timeout={local.TIMEOUT})
    assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready("{MODEL}")
    inputs = [InferInput(name="text_input", shape=[1], datatype="BYTES", data=["{PROMPT}"])]
    request = InferRequest("{MODEL}", inputs, request_id="7", parameters={{"max_tokens": 40, "seed": 3}})
    answer = await client.infer(request)
    try:
        await client.infer(InferRequest("nobody", inputs))
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND
    else:
        raise AssertionError("an unknown model must be an error")
    await client.close()
    print(answer.id, answer.outputs[0].as_numpy()[0].decode(), sep=":")
asyncio.run(ask())
"""


def test_kserves_client(server: local.Server) -> None:
    """KServe's client sends typed contents and reads raw ones."""
    if importlib.util.find_spec("kserve") is None:
        pytest.skip("kserve is not installed: it needs Python 3.10")
    done = subprocess.run(
        [sys.executable, "-c", KSERVE, server.address], capture_output=True, text=True, timeout=2 * local.TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    with triton.InferenceServerClient(server.address) as client:
        expected = text_of(client.infer(MODEL, inputs(triton, PROMPT, False, max_tokens=40, seed=3)))
    assert done.stdout == f"7:{expected}\n"


KSERVE_REST = f"""
import asyncio, httpx, sys
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
async def ask():
    url = sys.argv[1]
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout={local.TIMEOUT}, retries=1))
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, "{MODEL}") and not await client.is_model_ready(url, "nobody")
    inputs = [InferInput(name="text_input", shape=[1], datatype="BYTES", data=["{PROMPT}"])]
    request = InferRequest("{MODEL}", inputs, request_id="7", parameters={{"max_tokens": 40, "seed": 3}})
    answer = await client.infer(url, request, model_name="{MODEL}")
    try:
        await client.infer(url, request, model_name="nobody")
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == 404 and 'found "nobody"' in error.response.json()["error"]
    else:
        raise AssertionError("an unknown model must be an error")
    print(answer.id, answer.outputs[0].data[0], sep=":")
asyncio.run(ask())
"""


def test_kserves_client_over_http(server: local.Server) -> None:
    if importlib.util.find_spec("kserve") is None:
        pytest.skip("kserve is not installed: it needs Python 3.10")
    url = "http://{}".format(server.listener("playground"))
    done = subprocess.run(
        [sys.executable, "-c", KSERVE_REST, url], capture_output=True, text=True, timeout=2 * local.TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    with triton.InferenceServerClient(server.address) as client:
        expected = text_of(client.infer(MODEL, inputs(triton, PROMPT, False, max_tokens=40, seed=3)))
    assert done.stdout == f"7:{expected}\n"


def test_metadata_and_statistics(server: local.Server) -> None:
    with triton.InferenceServerClient(server.address) as client:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
        assert not client.is_model_ready("nobody")
        assert client.get_server_metadata().name == "weir"
        metadata = client.get_model_metadata(MODEL, as_json=True)
        assert metadata["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": ["1"]}
        config = client.get_model_config(MODEL).config
        assert config.model_transaction_policy.decoupled and config.parameters["token"].string_value == "character"
        index = client.get_model_repository_index()
        assert [(model.name, model.state) for model in index.models] == [(MODEL, "READY")]
        before = client.get_inference_statistics(MODEL).model_stats[0]
        client.infer(MODEL, inputs(triton, PROMPT, False, max_tokens=5))
        after = client.get_inference_statistics(MODEL).model_stats[0]
        assert after.inference_count == before.inference_count + 1
        assert after.inference_stats.success.ns > before.inference_stats.success.ns
        for call in (
            partial(client.load_model, MODEL),
            partial(client.unload_model, MODEL),
            client.unregister_system_shared_memory,
            client.get_cuda_shared_memory_status,
            client.get_trace_settings,
        ):
            with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
                call()


def test_rejected_requests(server: local.Server) -> None:
    with triton.InferenceServerClient(server.address) as client:
        for tensors, message in [
            (inputs(triton, PROMPT, False, max_tokens=10**9), "INVALID_ARGUMENT.*max_tokens: expected 0 to .*, found 1000000000"),
            (inputs(triton, PROMPT, True, max_tokens=5), "INVALID_ARGUMENT.*stream: expected false .*, found true"),
            (
                inputs(triton, PROMPT, False, temperature="hot"),
                'INVALID_ARGUMENT.*temperature: expected a number, found "hot"',
            ),
            (inputs(triton, "", False), "INVALID_ARGUMENT.*text_input: "),
            ([], "INVALID_ARGUMENT.*inputs: expected one named text_input"),
            ([tensor(triton, "text_input", PROMPT)] * 2, "INVALID_ARGUMENT.*text_input: expected one tensor of this name"),
            ([array("text_input", "BYTES", [b"a", b"b"])], r"INVALID_ARGUMENT.*text_input: expected the shape .*, found \[2\]"),
            ([array("text_input", "INT32", [1])], 'INVALID_ARGUMENT.*text_input: expected the datatype BYTES, found "INT32"'),
            (
                [array("INPUT0", "INT32", [1] * 16)],
                'INVALID_ARGUMENT.*inputs: expected one of text_input, .*, found "INPUT0"',
            ),
        ]:
            with pytest.raises(InferenceServerException, match=message):
                client.infer(MODEL, tensors)
        with pytest.raises(InferenceServerException, match='NOT_FOUND.*found "nobody"'):
            client.infer("nobody", inputs(triton, PROMPT, False))
