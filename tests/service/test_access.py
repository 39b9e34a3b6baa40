"""What a key allows: permissions, and the tenants that it is bound to."""

from __future__ import annotations

import pytest

from everwork.core.limits import DEFAULT_TENANT
from everwork.exceptions import InvalidInput, PermissionDenied
from everwork.service.access.principal import ANYBODY, Permission, Principal

ALLOWED = {
    Permission.ALL: set(Permission),
    Permission.JOBS: {Permission.JOBS, Permission.JOBS_READ},
    Permission.JOBS_READ: {Permission.JOBS_READ},
    Permission.ADMIN: {Permission.ADMIN, Permission.TICK},
    Permission.TICK: {Permission.TICK},
}


def holder(*permissions: Permission, tenants: tuple[str, ...] = ()) -> Principal:
    return Principal("1", "ann", frozenset(permissions), tenants)


@pytest.mark.parametrize("held", Permission)
@pytest.mark.parametrize("asked", Permission)
def test_a_permission_grants_itself_and_what_it_contains(held: Permission, asked: Permission) -> None:
    assert holder(held).allows(asked) == (asked in ALLOWED[held])


def test_two_permissions_grant_what_either_does() -> None:
    both = holder(Permission.JOBS_READ, Permission.ADMIN)
    assert [both.allows(one) for one in Permission] == [False, False, True, True, True]


def test_whoever_lacks_a_permission_is_told_which_would_do() -> None:
    with pytest.raises(PermissionDenied, match=r"key 'ann' lacks the permission '\*' or 'jobs'"):
        holder(Permission.JOBS_READ).require(Permission.JOBS)


def test_a_key_without_tenants_acts_for_all() -> None:
    ANYBODY.require_tenant("acme")
    ANYBODY.require_unbound()
    assert (ANYBODY.tenants_for(), ANYBODY.tenants_for(["acme"])) == ((), ("acme",))


def test_a_bound_key_acts_for_its_own_tenants_only() -> None:
    bound = holder(Permission.ALL, tenants=("acme", "globex"))
    bound.require_tenant("globex")
    assert bound.tenants_for() == ("acme", "globex")
    for refused in (
        lambda: bound.require_tenant("initech"),
        lambda: bound.tenants_for(["acme", "initech"]),
        lambda: bound.tenant_for_create("initech"),
        bound.require_unbound,
    ):
        with pytest.raises(PermissionDenied):
            refused()


@pytest.mark.parametrize(
    ("tenants", "asked", "owner"),
    [
        ((), None, DEFAULT_TENANT),
        ((), "acme", "acme"),
        (("acme",), None, "acme"),
        (("acme",), "acme", "acme"),
        (("acme", DEFAULT_TENANT), None, DEFAULT_TENANT),
    ],
)
def test_a_new_job_belongs_to_whom_the_key_can_mean(tenants: tuple[str, ...], asked: str | None, owner: str) -> None:
    assert holder(Permission.JOBS, tenants=tenants).tenant_for_create(asked) == owner


def test_a_key_of_several_tenants_must_say_which_one_a_new_job_belongs_to() -> None:
    with pytest.raises(InvalidInput, match="tenant: is required: key 'ann' has 2 tenants"):
        holder(Permission.JOBS, tenants=("acme", "globex")).tenant_for_create(None)
