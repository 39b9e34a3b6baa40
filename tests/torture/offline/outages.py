"""How the store of an offline run goes away and comes back: killed, cut off, silent, or moved."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from tests.outages import FileStore
from tests.servers import LOOPBACK, free_port
from tests.torture import faults
from tests.torture.offline.nursery import SERVER, Launched, Nursery
from tests.torture.places import Killable, Place
from tests.torture.process import Life
from tests.torture.proxy import Proxy

PORTS: Final = "EVERWORK_TORTURE_PORTS"
"""Tells a server where to listen: for gRPC and for REST."""
KEY: Final = "ek-torture-0123456789abcdef"


class Outage(NamedTuple):
    """One way to be away."""

    name: str
    leave: Callable[[], None]
    come_back: Callable[[], None]


class Outages:
    """The store of a run: where its users find it, and how it goes away."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._proxy = Proxy(place.port) if place.port is not None else None
        self._ways: list[Outage] = []

    async def start(self) -> str:
        """The URL under which producers and workers reach the store, as long as it is there."""
        server = self._place.server
        if server is None or self._proxy is None:
            file = FileStore(self._folder)
            self._ways = [Outage("outages: file moved away", file.leave, file.come_back)]
            return file.url
        self._ways = self._ways_of(server, self._proxy)
        return self._place.url(self._folder, await self._proxy.start())

    def _ways_of(self, server: Killable, proxy: Proxy) -> list[Outage]:
        return [
            Outage("outages: server killed", server.kill, lambda: _start(server)),
            Outage("outages: network cut", proxy.cut, proxy.mend),
            Outage("outages: server silent", proxy.swallow, proxy.mend),
        ]

    def add_server(self, server: Gateway) -> None:
        """Between the store and its users there is a server, which is killed first."""
        self._ways.insert(0, Outage("outages: everwork server killed", server.kill, server.start))

    @property
    def url(self) -> str:
        """The URL under which the controller reaches it."""
        return FileStore(self._folder).url if self._place.server is None else self._place.url(self._folder)

    def choose(self, number: int, rng: random.Random) -> Outage:
        """The next outage: each way once, then by chance."""
        return self._ways[number] if number < len(self._ways) else rng.choice(self._ways)

    async def close(self) -> None:
        """End every connection."""
        if self._proxy is not None:
            self._proxy.mend()
            await self._proxy.close()


class Gateway:
    """A server of ours, on ports of its own, which comes back on them."""

    def __init__(self, nursery: Nursery, life: Life) -> None:
        self._nursery = nursery
        self._life = life
        self._ports = (free_port(), free_port())
        self._process: Launched | None = None

    @property
    def url(self) -> str:
        """What clients take."""
        return f"grpc://{LOOPBACK}:{self._ports[0]}"

    def start(self) -> None:
        """Start; clients find out when it listens."""
        environment = {PORTS: " ".join(map(str, self._ports)), faults.VARIABLE: "", "EVERWORK_API_KEY": KEY}
        log = self._life.folder / f"{self._life.name}.log"
        self._process = self._nursery.launch(SERVER, self._life.arguments(), environment, log)
        self._life = replace(self._life, life=self._life.life + 1)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()


def _start(server: Killable) -> None:
    server.start()
