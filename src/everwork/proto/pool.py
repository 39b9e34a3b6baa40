"""Our own pool of descriptors: a user's generated `jobs_pb2`, or pyzeebe's, can be loaded in the same process."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

POOL: Final = DescriptorPool()


def add_file(name: str, serialized: bytes) -> FileDescriptor:
    """Make a file's messages and services known to the pool."""
    POOL.AddSerializedFile(serialized)
    return POOL.FindFileByName(name)
