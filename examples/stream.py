#!/usr/bin/env python3
"""Streams characters from a running weir server.

Needs `pip install grpcio grpcio-reflection` and no weir package: the server describes its schema by reflection.

    weir serve &
    python3 examples/stream.py "the history of the city" --max-chars 200 --temperature 0.7
"""

import argparse
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def stream_method(channel, service, name):
    """Returns a server-streaming method and its request type, from the server's schema."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName(service).FindMethodByName(name)
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    call = channel.unary_stream(
        f"/{service}/{name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    return call, request


def main():
    parser = argparse.ArgumentParser(description="Streams characters from a running weir server.")
    parser.add_argument("prompt")
    parser.add_argument("--address", default="127.0.0.1:50051")
    parser.add_argument("--model", help="may be left out if the server has exactly one")
    parser.add_argument("--max-chars", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int, help="if left out, the server draws a seed and the last line prints it")
    parser.add_argument("--stop", action="append", default=[], help="may be given several times")
    args = parser.parse_args()

    with grpc.insecure_channel(args.address) as channel:
        try:
            generate, request_type = stream_method(channel, "weir.v1.Generation", "Generate")
            request = request_type(prompt=args.prompt, details={"echo": True})
            if args.model:
                request.model = args.model
            if args.max_chars is not None:
                request.stopping.max_chars = args.max_chars
            if args.temperature is not None:
                request.sampling.temperature = args.temperature
            if args.seed is not None:
                request.sampling.seed = args.seed
            request.stopping.stop.extend(args.stop)

            for response in generate(request):
                if response.HasField("piece"):
                    print(response.piece.text, end="", flush=True)
                elif response.HasField("finished"):
                    print_summary(response.finished)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")


def print_summary(finished):
    """Prints one line about the answer on stderr."""
    usage, seconds = finished.usage, finished.timing.decode_ns / 1e9
    reasons = finished.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number
    reason = reasons[finished.reason].name.removeprefix("FINISH_REASON_").lower()
    line = f"{reason}, {usage.generated_chars} symbols in {seconds:.2f} s, seed {finished.seed}"
    if usage.HasField("shortening_factor"):
        line += f", {usage.shortening_factor:.2f} symbols a segment"
    print(f"\n[{line}]", file=sys.stderr)


if __name__ == "__main__":
    main()
