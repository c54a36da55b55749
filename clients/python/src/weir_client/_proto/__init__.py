"""The messages of `weir.v1`, created from their descriptors.

`weir.binpb` is the `FileDescriptorSet` of the server's `.proto` files. `tools/generate.py` writes this file and the `.pyi` files of
protoc. The import creates the classes from the descriptors. Python code that protoc generates works with few versions of protobuf,
and a client has to use the version that other packages require.
"""

import pkgutil
from typing import Any, Dict

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

# A separate pool: a program may also have other versions of the same messages in the default pool.
_POOL = descriptor_pool.DescriptorPool()


def _fill_pool() -> None:
    encoded = pkgutil.get_data(__name__, "weir.binpb")
    if encoded is None:
        raise ImportError("weir.binpb is missing from the installed weir_client")
    for file in descriptor_pb2.FileDescriptorSet.FromString(encoded).file:
        _POOL.AddSerializedFile(file.SerializeToString())


_fill_pool()


def load(file: str, into: Dict[str, Any]) -> None:
    """Adds the classes of the file's messages and enums to a module's namespace `into`."""
    descriptor = _POOL.FindFileByName(file)
    for name, message in descriptor.message_types_by_name.items():
        into[name] = message_factory.GetMessageClass(message)
    for name, enum in descriptor.enum_types_by_name.items():
        into[name] = EnumTypeWrapper(enum)
        into.update((value.name, value.number) for value in enum.values)
