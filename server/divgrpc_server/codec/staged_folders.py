"""Checks the names of folders of builds and generations, as messages between servers name them.

A name that passes leads to no other folder.
"""

import re
from pathlib import Path

from divgrpc.errors import invalid
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import staging_path
from divgrpc.storage.shards import SHARDS
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.ipc.job_frames import StagedGeneration


def check_staged(index: str, folder: str) -> str:
    """Return the name of a staging folder of an index, or of the folder of a shard in it.

    Raises `InvalidArgumentError`.
    """
    prefix = re.escape(staging_path(Path(index), "").name)
    if not re.fullmatch(rf"{prefix}[0-9A-Za-z]+(/{SHARDS}/[0-9]+)?", folder):
        raise invalid("folder", f"must be a staging folder of index {index!r}, got {folder!r:.80}")
    return folder


def parse_preparation(request: bytes) -> StagedGeneration:
    """Return the shard of a `PrepareRequest`; raises `InvalidArgumentError` and `DecodeError`."""
    message = shard_index_pb2.PrepareRequest.FromString(request)
    index = check_index_name(message.index)
    folder = f"{message.folder}/{SHARDS}/{message.shard}"
    if not re.fullmatch(f"{re.escape(index)}/[0-9]+", message.folder):
        check_staged(index, folder)
    return StagedGeneration(index, folder)
