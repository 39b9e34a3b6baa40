"""The dependencies of Everwork: their ranges are the tested ones, and their licenses allow use in closed products."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tools.supply import LOWEST, NEWEST, allowed, license_of, pinned, required, shipped

UNBOUNDED = {"tzdata"}
"""Packages that contain only data, and so have no interface that could change."""


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    bounds = {name: {one.operator for one in wanted.specifier} for name, wanted in required().items()}
    assert {name for name, operators in bounds.items() if operators != {">=", "<"}} == UNBOUNDED


def test_the_lowest_tested_versions_are_the_lower_bounds() -> None:
    bounds = {
        name: next(Version(one.version) for one in wanted.specifier if one.operator == ">=")
        for name, wanted in required().items()
        if name not in UNBOUNDED
    }
    tested = {name: Version(version) for name, version in pinned(LOWEST).items()}
    assert {name: tested.get(name) for name in bounds} == bounds


def test_the_versions_that_ci_installs_are_supported() -> None:
    tested = pinned(NEWEST)
    assert [name for name, wanted in required().items() if not wanted.specifier.contains(tested[name])] == []


def test_the_licenses_of_everything_that_is_shipped_allow_closed_products() -> None:
    licenses = {name: license_of(package) for name, package in shipped().items()}
    assert {name: one for name, one in licenses.items() if not allowed(one)} == {}
    assert set(required()) <= set(licenses)


@pytest.mark.parametrize("license", ["GPL-3.0-only", "MIT AND GPL-3.0-only", "MIT OR AGPL-3.0", "unknown"])
def test_other_licenses_are_refused(license: str) -> None:
    assert not allowed(license)
