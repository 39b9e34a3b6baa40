"""Several libraries in one process, and tools that know nothing but what the server tells of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from everwork.client import Client
from tests.client.server import KEY, ServerProcess
from tests.foreign.program import python


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    """A plain channel to the server."""
    with grpc.insecure_channel(server.address) as opened:
        yield opened


def test_the_client_a_users_stubs_and_pyzeebe_live_in_one_process(server: ServerProcess, stubs: Path) -> None:
    program = python("all_together.py", server.address, "together", stubs=stubs)
    assert program.wait() == 0
    [said] = program.events
    assert said["results"] == ["by the client", {"by": "own stubs"}, {"by": "pyzeebe"}]
    assert said["apart"] == [True, True]


def test_the_server_lists_its_services(channel: grpc.Channel) -> None:
    services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert services >= {
        "atom.jobs.v1.JobsService",
        "everwork.v1.DeskService",
        "everwork.v1.WorkService",
        "gateway_protocol.Gateway",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_a_tool_can_call_with_nothing_but_what_reflection_tells(channel: grpc.Channel, client: Client) -> None:
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    service = pool.FindServiceByName("atom.jobs.v1.JobsService")
    assert len(service.methods) == 11
    method = service.methods_by_name["CreateJob"]
    request = GetMessageClass(method.input_type)(job_type="by-reflection", variables={"url": "u"})
    call = channel.unary_unary(
        f"/{service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    answer = call(request, metadata=(("x-api-key", KEY),), timeout=30)
    assert (await client.get(answer.job_key)).variables == {"url": "u"}
