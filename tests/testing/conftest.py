"""An application and a world that it acts on."""

from __future__ import annotations

import pytest

from everwork import Everwork
from tests.testing.applications import World, an_application


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def app(world: World) -> Everwork:
    return an_application(world)
