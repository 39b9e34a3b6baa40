"""The fixtures of the packages' own tests that promises are tried with."""

from __future__ import annotations

from tests.cli.conftest import cli
from tests.manager.conftest import managers, outside, said, start, url

__all__ = ["cli", "managers", "outside", "said", "start", "url"]
