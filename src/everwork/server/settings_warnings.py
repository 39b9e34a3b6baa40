"""Warnings about settings that are allowed but dangerous, and about variables that look like settings but are not."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from everwork.codec.urls import shown_url
from everwork.server.addresses import refuses_clear_keys
from everwork.server.settings import PREFIX, Settings
from everwork.server.settings_file import read_file

RESEMBLANCE_MIN: Final = 0.58
"""The minimum similarity at which an unknown variable is considered a misspelled setting."""
_FOREIGN: Final = re.compile(r"(.+_)?(service_(host|port)(_.+)?|port_\d+_.+)|(django|test)_.+")
"""Variables that Kubernetes sets for services, and those of other parts of Everwork."""


def clear_text_warning(settings: Settings) -> str | None:
    """A warning about a server that other hosts can reach without TLS."""
    if settings.is_loopback or settings.tls_certificate is not None:
        return None
    if refuses_clear_keys(settings):
        return (
            f"TLS is off and host is {settings.host}: API keys are accepted only from this host, and through proxies "
            "in trusted_proxies that send X-Forwarded-Proto: https; set tls_certificate and tls_key, or accept "
            "unencrypted API keys with insecure = on (serve --insecure)"
        )
    return f"TLS is off, host is {settings.host} and insecure is on: API keys and jobs can be read on the network"


def suspicious_variables(environ: Mapping[str, str]) -> list[str]:
    """A warning for each ignored variable that resembles a setting."""
    known = [one.name for one in fields(Settings)]
    warnings = []
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name in known or _FOREIGN.fullmatch(name) or "://" in text:
            continue
        if similar := get_close_matches(name, known, 2, RESEMBLANCE_MIN):
            meant = " or ".join(f"{PREFIX}{one.upper()}" for one in sorted(similar))
            warnings.append(f"environment variable {variable} is unknown and ignored; did you mean {meant}?")
    return warnings


def file_warnings(config_path: str | Path | None) -> Iterator[str]:
    """A warning for each permission of the settings file that other users of this host should not have."""
    found = read_file(config_path)
    if found is None or os.name != "posix":
        return
    file, values = found
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        return
    if mode & stat.S_IWOTH:
        yield f"{file} can be changed by any user of this host; run: chmod o-w {file}"
    if mode & stat.S_IROTH and _has_password(values.get("engine")):
        yield f"{file} contains a password and can be read by any user of this host; run: chmod o-r {file}"


def _has_password(engine: Any) -> bool:
    return isinstance(engine, str) and shown_url(engine) != engine
