"""Jinja templates and their filters: values are escaped, undefined names are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from everwork.core.instants import utc_text
from everwork.core.states import State
from everwork.server.http.ui.address import address, base, job_url, type_url
from everwork.server.http.ui.moments import utc_field, utc_iso
from everwork.server.http.ui.redaction import one_line, visible

_FIELD: Final = re.compile(r"[\w.\[\]]+: ")
NOTHING: Final = "\u2013"
"""The placeholder of a missing value."""
LIVE: Final = "live"
"""The block of every page that is updated live."""

_FOLDER: Final = Path(__file__).parent / "static"
_MEDIA: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES: Final = {file.name: file.read_bytes() for file in sorted(_FOLDER.iterdir()) if file.suffix in _MEDIA}
VERSION: Final = sha256(b"".join(_FILES.values())).hexdigest()[:12]
ASSET_PATH: Final = "/static/{version}/{name}"


def asset_url(name: str) -> str:
    """The URL of an asset, which changes with its version."""
    return address(f"/static/{VERSION}/{name}")


def asset(version: str, name: str) -> Response | None:
    """An asset by name; cacheable only under the current version."""
    content = _FILES.get(name)
    if content is None:
        return None
    cached = "public, max-age=31536000, immutable" if version == VERSION else "no-store"
    return Response(content, headers={"Cache-Control": cached}, media_type=_MEDIA[Path(name).suffix])


environment: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def render(template: str, context: Mapping[str, Any]) -> str:
    """Render a whole page."""
    return environment.get_template(template).render(context)


def render_live(template: str, context: Mapping[str, Any]) -> str:
    """Render the live block of a page."""
    found = environment.get_template(template)
    return "".join(found.blocks[LIVE](found.new_context(dict(context))))


def when(instant_ms: int | None, style: str = "ago") -> str | Markup:
    """An instant in UTC, which the script converts to the viewer's time zone.

    Styles: `ago` (a distance that keeps counting), `clock` (date and time), `moment` (the date only if not today),
    `minute` (the same without seconds).
    """
    if instant_ms is None:
        return NOTHING
    plain = datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    element = Markup('<time datetime="{}" data-as="{}">{} UTC</time>')
    return element.format(utc_text(instant_ms), style, plain)


def duration(milliseconds: float | None) -> str:
    """A duration with its unit."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def sentence(text: str) -> str:
    """An error message with a period and a capital letter, unless it starts with the name of a field."""
    if not text:
        return text
    start = text[0] if _FIELD.match(text) else text[0].upper()
    return f"{start}{text[1:]}{'' if text[-1] in '.!?' else '.'}"


def _short(value: float) -> str:
    """At most one decimal, without `.0`."""
    return f"{value:.1f}".removesuffix(".0")


def number(value: float | None) -> str:
    """A number with thousands separators."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2g}"


def size(count: int | None) -> str:
    """A number of bytes."""
    if count is None:
        return NOTHING
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


environment.filters |= {
    "when": when,
    "duration": duration,
    "number": number,
    "size": size,
    "visible": visible,
    "one_line": one_line,
    "sentence": sentence,
    "utc_field": utc_field,
    "utc_iso": utc_iso,
}
environment.globals |= {"address": address, "base": base, "job_url": job_url, "type_url": type_url}
environment.globals["asset_url"] = asset_url
environment.globals["states"] = tuple(state.label for state in State)
# Global, not imported by each template: a block that is rendered alone does not see its template's imports.
environment.globals["macros"] = environment.get_template("macros.html").module
