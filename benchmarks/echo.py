"""A bare grpc.aio server that returns each request: the baseline of unary calls."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from everwork.aio.loops import new_loop

METHOD = "/bare.Echo/Echo"


async def _echo(request: bytes, _context: object) -> bytes:
    return request


async def _serve() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.unary_unary_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare.Echo", {"Echo": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f'{{"grpc_port": {port}}}', flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve())
