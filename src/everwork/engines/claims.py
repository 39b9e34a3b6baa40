"""Demands for the same jobs are claimed together, and what was claimed is shared out.

So many callers who ask in one step cost little more than one who asks for as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand


class Claim(NamedTuple):
    """Demands of one queue and the same tenants. Each takes up to its limit of what is claimed, in their order."""

    demands: list[Demand]
    places: list[int]
    """Where each stands among all the demands."""

    @property
    def whole(self) -> Demand:
        """The first of them, wanting what they want together."""
        first = self.demands[0]
        return first if len(self.demands) == 1 else first._replace(limit=sum([demand.limit for demand in self.demands]))

    def parted(self, jobs: Sequence[LeasedJob]) -> list[tuple[Demand, Sequence[LeasedJob]]]:
        """The share of each demand."""
        parts: list[tuple[Demand, Sequence[LeasedJob]]] = []
        start = 0
        for demand in self.demands:
            parts.append((demand, jobs[start : start + demand.limit]))
            start += demand.limit
        return parts

    def dated(self, jobs: list[LeasedJob], now_ms: int) -> list[LeasedJob]:
        """Jobs that were leased for as long as the first demand wants, with the deadlines that the others want."""
        usual_ms = self.demands[0].lease_ms
        if all(demand.lease_ms == usual_ms for demand in self.demands):
            return jobs
        return [
            job if demand.lease_ms == usual_ms else job._replace(lease_until_ms=now_ms + demand.lease_ms)
            for demand, share in self.parted(jobs)
            for job in share
        ]


def claims_of(demands: Sequence[Demand]) -> list[Claim]:
    """Which demands are claimed together."""
    claims: dict[tuple[str, str, tuple[str, ...]], Claim] = {}
    for place, demand in enumerate(demands):
        same = (demand.type, demand.group, demand.tenants)
        claim = claims.get(same)
        if claim is None:
            claims[same] = claim = Claim([], [])
        claim.demands.append(demand)
        claim.places.append(place)
    return list(claims.values())


def shared_out(
    claimed: Iterable[tuple[Claim, list[LeasedJob]]], demands: int
) -> tuple[list[LeasedJob], tuple[int, ...]]:
    """Jobs in the order of the demands, and how many each demand got."""
    shares: list[Sequence[LeasedJob]] = [()] * demands
    for claim, jobs in claimed:
        for place, (_, share) in zip(claim.places, claim.parted(jobs), strict=True):
            shares[place] = share
    return [job for share in shares for job in share], tuple(map(len, shares))
