"""The answer to a change of one job, whoever made it."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import orjson
from starlette.responses import Response

from everwork.core.limits import ATTEMPT_MAX
from everwork.exceptions import EngineError, JobNotFound
from everwork.server.http.api.schemas import ref
from everwork.server.http.framework.fields import Whole
from everwork.server.http.framework.operations import Answer, Call, Field, Shape, answer
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
    204: Answer("Done; with `Prefer: return=minimal`, or if the job cannot be read any more."),
}


async def changed(call: Call) -> Response:
    """The job after a change; nothing, if little was asked for or it cannot be read: the change is made anyway."""
    if not call.wants_little:
        with suppress(JobNotFound, EngineError):
            return answer(job_report(await call.desk.get(call.key), read=orjson.Fragment))
    return Response(status_code=204)
