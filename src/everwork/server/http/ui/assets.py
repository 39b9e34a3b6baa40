"""The dashboard's stylesheet, script and icon: from this package, kept by browsers until they change."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.responses import Response

_FOLDER: Final = Path(__file__).parent / "static"
_MEDIA: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES: Final = {file.name: file.read_bytes() for file in sorted(_FOLDER.iterdir()) if file.suffix in _MEDIA}
VERSION: Final = sha256(b"".join(_FILES.values())).hexdigest()[:12]
PATH: Final = "/ui/static/{version}/{name}"


def asset_url(name: str) -> str:
    """Where an asset is: another place for every version of it."""
    return f"/ui/static/{VERSION}/{name}"


def asset(version: str, name: str) -> Response | None:
    """An asset, if there is one of this name. Only what is asked for by its version is kept."""
    content = _FILES.get(name)
    if content is None:
        return None
    cached = "public, max-age=31536000, immutable" if version == VERSION else "no-store"
    return Response(content, headers={"Cache-Control": cached}, media_type=_MEDIA[Path(name).suffix])
