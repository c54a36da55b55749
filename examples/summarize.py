#!/usr/bin/env python3
"""Streams the summary of a document from a running weir server, then requests another from the encoded document.

Needs `pip install grpcio grpcio-reflection` and no weir package: the server describes its schema by reflection.

    weir serve --model models/compared/summarizer-pyramidion &
    python3 examples/summarize.py article.txt --beam 4
"""

import argparse
import sys
from pathlib import Path

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "weir.v1.Summarization"


def summarize_method(channel):
    """Returns the method and its request type, from the server's schema."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName(SERVICE).FindMethodByName("Summarize")
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    call = channel.stream_stream(
        f"/{SERVICE}/Summarize",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    return call, request


def parts(request_type, options, text, size):
    """Yields the options, then the document in chunks. An empty `text` yields no chunks."""
    yield request_type(options=options)
    for start in range(0, len(text), size):
        yield request_type(chunk={"text": text[start : start + size]})


def show(responses, text):
    """Prints each event as it arrives; returns the last one."""
    encoded = text.encode()
    for response in responses:
        match response.WhichOneof("event"):
            case "progress":
                progress = response.progress
                print(f"\r{progress.tokens_read} tokens, {progress.blocks_encoded} blocks", end="", file=sys.stderr)
            case "selected":
                spans = sorted(response.selected.spans, key=lambda span: -span.score)[:5]
                best = [encoded[span.byte_start : span.byte_end].decode() for span in spans]
                print(f"\nafter layer {response.selected.layer}: {best}", file=sys.stderr)
            case "piece":
                print(response.piece.text, end="", flush=True)
            case "finished":
                timing, usage = response.finished.timing, response.finished.usage
                print(
                    f"\n[{usage.document_tokens} tokens read, {usage.cached_tokens} of them before; "
                    f"{usage.summary_tokens} written in {timing.total_ns / 1e9:.2f} s; the decoder attends to "
                    f"{usage.cross_attention_bytes} bytes instead of {usage.unpooled_cross_attention_bytes}]",
                    file=sys.stderr,
                )
                return response.finished


def main():
    parser = argparse.ArgumentParser(description="Summarizes a document by a running weir server.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--address", default="127.0.0.1:50051")
    parser.add_argument("--model", help="may be left out if the server has exactly one")
    parser.add_argument("--beam", type=int)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--chunk", type=int, default=2000, help="characters of a message")
    parser.add_argument("--cut", action="store_true", help="summarize the beginning of a document that is too long")
    args = parser.parse_args()

    text = args.file.read_text()
    options = {"cut": args.cut}
    for name, value in (("model", args.model), ("beam_size", args.beam), ("max_tokens", args.max_tokens)):
        if value is not None:
            options[name] = value
    with grpc.insecure_channel(args.address) as channel:
        try:
            summarize, request_type = summarize_method(channel)
            finished = show(summarize(parts(request_type, options, text, args.chunk)), text)
            if finished.HasField("document_id"):
                print("again, by greedy search:", file=sys.stderr)
                again = {**options, "document_id": finished.document_id, "beam_size": 1}
                show(summarize(parts(request_type, again, "", 1)), text)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
