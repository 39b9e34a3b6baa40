"""Generated code in its own DescriptorPool, and the `.proto` files that it was generated from, for other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROTO_PATH: Final = Path(__file__).parent
"""The folder with `jobs.proto`, `gateway.proto` and `work.proto`: what `protoc -I` takes."""
