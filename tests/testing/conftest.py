"""An application and a world that it acts on."""

from __future__ import annotations

import pytest

from everwork import Everwork
from everwork.testing.fixtures import everwork_stage
from tests.testing.applications import World, an_application

__all__ = ["everwork_stage"]
"""There by its entry point, too, if this checkout was installed since there is one."""


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def app(world: World) -> Everwork:
    return an_application(world)
