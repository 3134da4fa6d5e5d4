"""Whether a model folder's safetensors files are all there and whole, read from their headers alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from looseleaf.errors import ModelLoadError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# The format's own limit on the header.
_MAX_HEADER_BYTES = 100_000_000


def check_weight_files(folder: Path) -> None:
    """Check that every weight file of ``folder`` exists and is as long as its header says.

    A download that broke off leaves a file that opens well and fails deep in loading, or a missing shard.

    Args:
        folder: a model folder, sharded or not.

    Raises:
        ModelLoadError: no safetensors, a missing shard, or a file whose size contradicts its header.
    """
    for path in _weight_files(folder):
        if not path.is_file():
            raise ModelLoadError(f"{path} is missing: {_INDEX} names it; copy the model again")
        _check_whole(path)


def _weight_files(folder: Path) -> list[Path]:
    # In this order, transformers' own: it reads the single file where there are both.
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    index = folder / _INDEX
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{index} is not a safetensors index; copy the model again") from error
        return [folder / shard for shard in sorted(shards)]
    pickled = next(iter(sorted(folder.glob("*.bin"))), None)
    if pickled is not None:
        raise ModelLoadError(f"{folder} holds {pickled.name} only: convert its weights to safetensors")
    raise ModelLoadError(f"no weights in {folder}: it needs {_SINGLE}, or shards and {_INDEX}")


def _check_whole(path: Path) -> None:
    """Compare a file's size with the end of its last tensor (the safetensors format: 8 bytes of header
    length, little-endian, then a JSON header whose ``data_offsets`` count from the header's end)."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < header_bytes <= min(size_bytes, _MAX_HEADER_BYTES):
            raise ModelLoadError(f"{path} is not a safetensors file, or its head is cut off; copy it again")
        try:
            header = json.loads(file.read(header_bytes))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{path} has an unreadable safetensors header; copy it again") from error
    expected_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes != expected_bytes:
        raise ModelLoadError(
            f"{path} is {size_bytes} bytes and its header says {expected_bytes}: it is cut off or damaged; "
            "copy it again"
        )
