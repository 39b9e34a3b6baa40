"""Finds, reads and parses the settings file; every error is one line that names the file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from everwork.exceptions import BadConfiguration

DEFAULT_FILE: Final = "everwork.toml"
FILE_BYTES_MAX: Final = 1_048_576


def read_file(path: str | Path | None) -> tuple[Path, dict[str, Any]] | None:
    """Read the given file, or the one in the working directory; return None if the latter does not exist."""
    file = Path(DEFAULT_FILE if path is None else path)
    text = _text_of(file, may_be_missing=path is None)
    return None if text is None else (file, _parsed(file, text))


def _text_of(file: Path, *, may_be_missing: bool) -> str | None:
    try:
        # A named pipe is read only if given explicitly; reading one found by default might never end.
        if file.is_dir() or (may_be_missing and file.exists() and not file.is_file()):
            raise BadConfiguration(f"cannot read {file}: it is not a regular file")
        with file.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        if may_be_missing:
            return None
        raise BadConfiguration(f"cannot read {file}: no such file") from None
    except (OSError, ValueError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadConfiguration(f"cannot read {file}: {problem}") from None
    return _decoded(file, raw)


def _decoded(file: Path, raw: bytes) -> str:
    if len(raw) > FILE_BYTES_MAX:
        raise BadConfiguration(f"cannot read {file}: it is larger than {FILE_BYTES_MAX:,} bytes")
    try:
        # Some editors write a byte order mark.
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadConfiguration(f"cannot read {file}: it is not UTF-8 text (line {line})") from None


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        # With a final newline, an error in the last line has a line number, too.
        return tomllib.loads(f"{text}\n")
    except RecursionError:
        raise BadConfiguration(f"cannot read {file}: it is nested too deeply; settings are flat") from None
    except ValueError as error:
        raise BadConfiguration(f"cannot read {file}: it is not TOML: {error}") from None
