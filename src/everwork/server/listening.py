"""Listening sockets; a failure names the setting to change."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Final, Literal

from everwork.exceptions import BadConfiguration
from everwork.server.settings import PREFIX

BACKLOG: Final = 2_048
PORT_PROBLEMS: Final = (errno.EADDRINUSE, errno.EACCES)
"""Choosing another port fixes these errors; all others are problems with the host."""


def open_listener(host: str, port: int, port_setting: Literal["grpc_port", "http_port"]) -> socket.socket:
    """Create a listening socket for the first address of a host."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = infos[0]
        return _listen(family, address)
    except OSError as error:
        is_of_port = error.errno in PORT_PROBLEMS
        raise cannot_listen(host, port, port_setting if is_of_port else "host", _reason(error)) from None


def cannot_listen(host: str, port: int, setting: str, reason: str) -> BadConfiguration:
    """Build the error: where and why listening failed, and how to choose another address."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    remedy = f"--{setting.replace('_', '-')} or {PREFIX}{setting.upper()}"
    return BadConfiguration(f"{setting}: cannot listen on {where}: {reason}; choose another one with {remedy}")


def _reason(error: OSError) -> str:
    """Only the system's text, without the address that Python adds: the message already has it."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    """Create a listening socket; `::` also accepts IPv4."""
    if family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6():
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(address, family=family, backlog=BACKLOG)
