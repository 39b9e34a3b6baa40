"""Which way leads to the jobs that a URL names; only what that way needs is loaded."""

from __future__ import annotations

from everwork.client.address import Tls, is_remote, server_address
from everwork.client.desk import Line
from everwork.exceptions import BadConfiguration


def line_to(url: str, key: str | None, tls: Tls) -> Line:
    """The way to a server or a store, not opened yet."""
    if is_remote(url):
        return _remote(url, key, tls)
    if key is not None or tls != Tls():
        raise BadConfiguration("client: key and tls are for servers; a store's URL has its own user and parameters")
    from everwork.client.local import LocalLine  # noqa: PLC0415

    return LocalLine(url)


def _remote(url: str, key: str | None, tls: Tls) -> Line:
    address = server_address(url, key, tls)
    try:
        from everwork.client.remote import RemoteLine  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("everwork"):
            raise
        raise BadConfiguration(
            f"client: {error.name!r} is not installed; run: pip install 'everwork[client]'"
        ) from None
    return RemoteLine(address)
