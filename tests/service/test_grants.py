"""No key grants what it lacks, or revokes a stronger one: checked for every pair of a key and a requested key."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import TYPE_CHECKING, Final

import pytest

from everwork.exceptions import PermissionDenied
from everwork.service.access.api_key import ApiKey
from everwork.service.access.grants import granted, outranks, require_may_revoke
from everwork.service.access.keys import ENVIRONMENT, KeyRing
from everwork.service.access.principal import ANYBODY, Permission, Principal
from everwork.service.access.sessions import OPERATOR
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.verb import Rule, rules_of

if TYPE_CHECKING:
    from everwork.engines.contract import Engine

SETS: Final = [frozenset(one) for size in range(1, len(Permission) + 1) for one in combinations(Permission, size)]
TENANTS: Final = ((), ("acme",), ("acme", "birch"))
SPANS: Final = (None, 1_000, 2_000)
RATES: Final = (None, 10.0, 20.0)
RULES: Final = [*rules_of(Admin).values(), *rules_of(Jobs).values()]


def a_holder(permissions: frozenset[Permission], tenants: tuple[str, ...] = (), *limits: float | None) -> Principal:
    """The holder of a key with these permissions, tenants, expiry and rate."""
    expires, rate = limits or (None, None)
    return Principal("1", "ann", permissions, tenants, None if expires is None else int(expires), rate)


def a_wish(permissions: frozenset[Permission], tenants: tuple[str, ...] = (), *limits: float | None) -> ApiKey:
    """A requested key."""
    expires, rate = limits or (None, None)
    ends_ms = None if expires is None else int(expires)
    return ApiKey("2", "new", tuple(permissions), tenants, 0, ends_ms, None, rate)


def holder_of(key: ApiKey) -> Principal:
    """The holder of a created key."""
    return Principal(key.id, key.name, frozenset(key.permissions), key.tenants, key.expires_at_ms, key.rate_per_second)


def given(creator: Principal, wish: ApiKey) -> Principal | None:
    """The holder of the created key; None if it is refused."""
    try:
        return holder_of(granted(creator, wish, creator.rate_per_second))
    except PermissionDenied:
        return None


def admits(rule: Rule, principal: Principal) -> bool:
    """Whether a principal may call a verb."""
    try:
        rule.admit(principal)
    except PermissionDenied:
        return False
    return True


def powers(principal: Principal) -> frozenset[int]:
    """The verbs that a principal may call, by number."""
    return frozenset(number for number, rule in enumerate(RULES) if admits(rule, principal))


def is_within(limit: float | None, bound: float | None) -> bool:
    """Whether a limit is at least as strict as another; None means no limit."""
    return bound is None or (limit is not None and limit <= bound)


def pairs() -> Iterator[tuple[Principal, ApiKey]]:
    """Every combination of a creator's permissions, requested permissions, and tenants of both."""
    for own, tenants, wished, its_tenants in product(SETS, TENANTS, SETS, TENANTS):
        yield a_holder(own, tenants), a_wish(wished, its_tenants)


def test_no_key_gives_permissions_or_tenants_that_it_does_not_have() -> None:
    can = {principal: powers(principal) for own in SETS for principal in [a_holder(own, t) for t in TENANTS]}
    made = [(creator, new) for creator, wish in pairs() if (new := given(creator, wish))]
    for creator, new in made:
        assert powers_of_new(can, new) <= can[creator], (creator, new)
        assert not creator.tenants
    assert len({creator.permissions for creator, _ in made}) == sum(
        not own.isdisjoint((Permission.ADMIN, Permission.ALL)) for own in SETS
    )


def powers_of_new(can: dict[Principal, frozenset[int]], new: Principal) -> frozenset[int]:
    """The verbs that a new key may call are those of a holder with the same permissions."""
    return can[a_holder(new.permissions, new.tenants)]


def test_an_administrator_gives_every_permission_that_it_has() -> None:
    for own, wished in product(SETS, SETS):
        creator = a_holder(own)
        has_all = creator.allows(Permission.ADMIN) and all(map(creator.allows, wished))
        assert (given(creator, a_wish(wished)) is not None) == has_all, (own, wished)


def test_no_key_gives_a_longer_life_or_a_higher_rate_than_its_own() -> None:
    everything = frozenset([Permission.ALL])
    for own, wished in product(product(SPANS, RATES), product(SPANS, RATES)):
        creator, wish = a_holder(everything, (), *own), a_wish(everything, (), *wished)
        new = given(creator, wish)
        is_asked_within = all(one is None or is_within(one, bound) for one, bound in zip(wished, own, strict=True))
        assert (new is not None) == is_asked_within, (own, wished)
        if new is not None:
            assert is_within(new.expires_at_ms, creator.expires_at_ms)
            assert is_within(new.rate_per_second, creator.rate_per_second)
            assert new.expires_at_ms == (wish.expires_at_ms or creator.expires_at_ms)


def test_what_a_key_made_can_make_no_more_than_the_key_itself() -> None:
    """Creating a key with a created key grants no more than creating it directly."""
    for own, first, second in product(SETS, SETS, SETS):
        between = given(a_holder(own, (), 1_000, 10.0), a_wish(first))
        last = between and given(between, a_wish(second))
        if last is not None:
            assert given(a_holder(own, (), 1_000, 10.0), a_wish(second)) is not None
            assert (last.expires_at_ms, last.rate_per_second) == (1_000, 10.0)


def test_no_key_revokes_an_administrator_with_more_permissions() -> None:
    for own, theirs in product(SETS, SETS):
        revoker, key = a_holder(own), a_wish(theirs)
        more = [one for one in Permission if holder_of(key).allows(one) and not revoker.allows(one)]
        assert outranks(theirs, (), revoker) == (holder_of(key).allows(Permission.ADMIN) and bool(more)), (own, theirs)
        assert not outranks(own, (), revoker)


@pytest.mark.parametrize("wished", ["jobs", "jobs:read", "tick"])
def test_an_administrator_revokes_a_leaked_key_of_a_worker(wished: str) -> None:
    require_may_revoke(a_holder(frozenset([Permission.ADMIN])), a_wish(frozenset([Permission(wished)])))


def test_a_refusal_says_what_the_key_lacks() -> None:
    admin = a_holder(frozenset([Permission.ADMIN]), (), 1_700_000_000_000, 10.0)
    for wish, reason in [
        (a_wish(frozenset([Permission.JOBS])), "key 'ann' lacks the permission 'jobs', and cannot grant it"),
        (a_wish(frozenset([Permission.ADMIN]), (), 1_700_000_000_001, None), "expires at 2023-11-14T22:13:20"),
        (a_wish(frozenset([Permission.ADMIN]), (), None, 11.0), "10 requests per second, and cannot grant 11"),
    ]:
        with pytest.raises(PermissionDenied, match=reason):
            granted(admin, wish, admin.rate_per_second)
    with pytest.raises(PermissionDenied, match=r"cannot revoke key 'new'.* more permissions: '\*'"):
        require_may_revoke(admin, a_wish(frozenset([Permission.ALL])))


async def test_a_key_without_a_rate_gives_at_most_the_rate_of_the_server(engine: Engine) -> None:
    ring = KeyRing(engine, environment_key="a-key-of-the-environment", rate_limit=100)
    with pytest.raises(PermissionDenied, match="limited to 100 requests per second, and cannot grant 101"):
        await ring.create("fast", ["jobs"], rate_per_second=101, creator=ENVIRONMENT)
    made = await ring.create("ops", ["*"], creator=ENVIRONMENT)
    holder = ring.authenticate(made.text)
    with pytest.raises(PermissionDenied):
        await ring.create("fast", ["jobs"], rate_per_second=101, creator=holder)
    assert (await ring.create("slow", ["jobs"], rate_per_second=100, creator=holder)).key.rate_per_second == 100


@pytest.mark.parametrize("operator", [ANYBODY, OPERATOR], ids=lambda one: one.name)
async def test_the_operator_of_the_store_is_bound_by_no_rate(engine: Engine, operator: Principal) -> None:
    ring = KeyRing(engine, environment_key="a-key-of-the-environment", rate_limit=100)
    made = await ring.create("fast", ["jobs"], rate_per_second=5_000, creator=operator)
    assert made.key.rate_per_second == 5_000
