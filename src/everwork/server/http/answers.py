"""The answer to a change of one job, whoever made it."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from everwork.core.limits import ATTEMPT_MAX
from everwork.exceptions import JobNotFound
from everwork.server.http.kinds import Whole
from everwork.server.http.operations import Answer, Call, Field, Shape, answer
from everwork.server.http.schemas import ref
from everwork.service.report import job_report

NOTHING: Final = Shape("Nothing", ())
ATTEMPT: Final = Field(
    "attempt",
    Whole(0, ATTEMPT_MAX),
    "The attempt that is meant: unless it is the live one, nothing changes.",
    default=0,
)
CHANGED: Final = {
    200: Answer("The job after the change.", ref("Job")),
    204: Answer("Done; with `Prefer: return=minimal`, or if the job is gone already."),
}


async def changed(call: Call) -> Response:
    """The job after a change; nothing, if little was asked for or somebody has deleted it since."""
    if not call.wants_little:
        try:
            return answer(job_report(await call.desk.get(call.key)))
        except JobNotFound:
            pass
    return Response(status_code=204)
