"""The messages of `weir.v1`, made from its descriptors.

`weir.binpb` is the `FileDescriptorSet` of the server's `.proto` files and the `.pyi` files are protoc's; `tools/generate.py`
writes both. Classes are made of descriptors when they are imported, and not by protoc, as protoc's Python code works with few
versions of protobuf, which a client has to share with whatever else is installed.
"""

import pkgutil
from typing import Any, Dict

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

# A pool of our own: a program may have classes of the same messages, in another version, beside these.
_POOL = descriptor_pool.DescriptorPool()


def _fill_pool() -> None:
    encoded = pkgutil.get_data(__name__, "weir.binpb")
    if encoded is None:
        raise ImportError("weir.binpb is missing from the installed weir_client")
    for file in descriptor_pb2.FileDescriptorSet.FromString(encoded).file:
        _POOL.AddSerializedFile(file.SerializeToString())


_fill_pool()


def load(file: str, into: Dict[str, Any]) -> None:
    """Puts the classes of the file's messages and enums into a module's names."""
    descriptor = _POOL.FindFileByName(file)
    for name, message in descriptor.message_types_by_name.items():
        into[name] = message_factory.GetMessageClass(message)
    for name, enum in descriptor.enum_types_by_name.items():
        into[name] = EnumTypeWrapper(enum)
        into.update((value.name, value.number) for value in enum.values)
