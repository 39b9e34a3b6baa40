"""REST: workers, triggers and processes."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from everwork.core import checks
from everwork.core.limits import TITLE_CHARS_MAX
from everwork.server.http.api.admin import ok, operation
from everwork.server.http.api.changes import NOTHING
from everwork.server.http.framework.fields import Integer
from everwork.server.http.framework.operations import Call, Field, json_response
from everwork.service.admin import Admin
from everwork.service.fleet.admin import FIRES_DEFAULT
from everwork.service.fleet.running import RUNNING_JOBS_MAX
from everwork.service.reports import (
    fired_report,
    fires_report,
    forgotten_report,
    processes_report,
    restart_report,
    running_report,
    trigger_report,
    trigger_switch_report,
    worker_report,
    worker_switch_report,
)
from everwork.service.triggers.fires import FIRES_MAX


async def list_workers(call: Call) -> Response:
    """List all declared workers."""
    return json_response({"workers": [worker_report(view) for view in await call.admin.workers()]})


async def switch_worker_on(call: Call) -> Response:
    """Enable a worker."""
    return await _switch_worker(call, is_on=True)


async def switch_worker_off(call: Call) -> Response:
    """Disable a worker: it takes no new jobs."""
    return await _switch_worker(call, is_on=False)


async def forget_worker(call: Call) -> Response:
    """Delete a worker that no process runs."""
    return json_response(forgotten_report(*await call.admin.forget_worker(_reference(call, "worker"))))


async def list_triggers(call: Call) -> Response:
    """List all triggers."""
    return json_response({"triggers": [trigger_report(view) for view in await call.admin.triggers()]})


async def switch_trigger_on(call: Call) -> Response:
    """Enable a trigger."""
    return await _switch_trigger(call, is_on=True)


async def switch_trigger_off(call: Call) -> Response:
    """Disable a trigger."""
    return await _switch_trigger(call, is_on=False)


async def fire_trigger(call: Call) -> Response:
    """Fire a trigger now."""
    await call.body()
    return json_response(fired_report(*await call.admin.fire_trigger(_trigger(call))))


async def list_fires(call: Call) -> Response:
    """List the latest jobs of a trigger."""
    view = await call.admin.trigger(_trigger(call))
    fires = await call.admin.fires(view.entry.name, call.query["limit"])
    return json_response(fires_report(view.entry, fires))


async def list_processes(call: Call) -> Response:
    """List running managers, processes, streams and pollers."""
    admin = call.admin
    return json_response(processes_report(await admin.managers(), await admin.processes(), await admin.left_out()))


async def restart_process(call: Call) -> Response:
    """Request the restart of a process."""
    await call.body()
    return json_response(restart_report(await call.admin.restart_process(call.path_param("process"))))


async def list_running(call: Call) -> Response:
    """List running jobs."""
    return json_response(running_report(await call.admin.running(call.query["limit"])))


async def _switch_worker(call: Call, *, is_on: bool) -> Response:
    await call.body()
    return json_response(worker_switch_report(await call.admin.switch_worker(_reference(call, "worker"), is_on)))


async def _switch_trigger(call: Call, *, is_on: bool) -> Response:
    await call.body()
    return json_response(trigger_switch_report(await call.admin.switch_trigger(_trigger(call), is_on)))


def _trigger(call: Call) -> str:
    return f"{_reference(call, 'worker')}/{_reference(call, 'trigger')}"


def _reference(call: Call, name: str) -> str:
    """A reference to a worker or trigger, by id or title."""
    return checks.text(name, call.request.path_params[name], TITLE_CHARS_MAX)


_WORKERS: Final = "/api/v1/workers"
_WORKER: Final = f"{_WORKERS}/{{worker}}"
_PROCESSES: Final = "/api/v1/processes"
_TRIGGERS: Final = "/api/v1/triggers"
_TRIGGER: Final = f"{_TRIGGERS}/{{worker}}/{{trigger}}"
_SWITCHED_WORKER: Final = ok("WorkerSwitch")
_SWITCHED_TRIGGER: Final = ok("TriggerSwitch")

OPERATIONS: Final = (
    operation(
        "listWorkers",
        f"GET {_WORKERS}",
        list_workers,
        Admin.workers,
        summary="List worker classes",
        response=ok("Workers"),
    ),
    operation(
        "workerOn",
        f"POST {_WORKER}/on",
        switch_worker_on,
        Admin.switch_worker,
        summary="Enable a worker",
        response=_SWITCHED_WORKER,
        body=NOTHING,
    ),
    operation(
        "workerOff",
        f"POST {_WORKER}/off",
        switch_worker_off,
        Admin.switch_worker,
        summary="Disable a worker: it takes no new jobs",
        response=_SWITCHED_WORKER,
        body=NOTHING,
    ),
    operation(
        "forgetWorker",
        f"DELETE {_WORKER}",
        forget_worker,
        Admin.forget_worker,
        summary="Delete a worker that no process runs",
        response=ok("ForgottenWorker"),
    ),
    operation(
        "listTriggers",
        f"GET {_TRIGGERS}",
        list_triggers,
        Admin.triggers,
        summary="List triggers",
        response=ok("Triggers"),
    ),
    operation(
        "triggerOn",
        f"POST {_TRIGGER}/on",
        switch_trigger_on,
        Admin.switch_trigger,
        summary="Enable a trigger",
        response=_SWITCHED_TRIGGER,
        body=NOTHING,
    ),
    operation(
        "triggerOff",
        f"POST {_TRIGGER}/off",
        switch_trigger_off,
        Admin.switch_trigger,
        summary="Disable a trigger",
        response=_SWITCHED_TRIGGER,
        body=NOTHING,
    ),
    operation(
        "fireTrigger",
        f"POST {_TRIGGER}/fire",
        fire_trigger,
        Admin.fire_trigger,
        summary="Fire a trigger now",
        response=ok("FiredTrigger"),
        body=NOTHING,
    ),
    operation(
        "listFires",
        f"GET {_TRIGGER}/fires",
        list_fires,
        Admin.fires,
        summary="List the latest jobs of a trigger",
        response=ok("Fires"),
        query=(Field("limit", Integer(1, FIRES_MAX), "Maximum number of jobs.", default=FIRES_DEFAULT),),
    ),
    operation(
        "listProcesses",
        f"GET {_PROCESSES}",
        list_processes,
        Admin.processes,
        summary="List running workers: processes, streams and pollers",
        response=ok("Processes"),
    ),
    operation(
        "restartProcess",
        f"POST {_PROCESSES}/{{process}}/restart",
        restart_process,
        Admin.restart_process,
        summary="Restart a worker process",
        response=ok("Restart"),
        body=NOTHING,
    ),
    operation(
        "listRunning",
        "GET /api/v1/running",
        list_running,
        Admin.running,
        summary="List running jobs and where they run",
        response=ok("Running"),
        query=(Field("limit", Integer(1, RUNNING_JOBS_MAX), "Maximum number of jobs.", default=RUNNING_JOBS_MAX),),
    ),
)
