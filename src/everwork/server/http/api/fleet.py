"""Workers, their triggers, and the processes that run them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from everwork.core import checks
from everwork.core.limits import TITLE_CHARS_MAX
from everwork.server.http.api.admin import READS, done, row
from everwork.server.http.api.changes import NOTHING
from everwork.server.http.framework.fields import Whole
from everwork.server.http.framework.operations import Call, Field, answer
from everwork.service.fleet.admin import FIRES_DEFAULT
from everwork.service.fleet.running import RUNNING_JOBS_MAX
from everwork.service.reports import (
    fired_report,
    fires_report,
    forgotten_report,
    manager_report,
    process_report,
    restart_report,
    running_report,
    trigger_report,
    trigger_switch_report,
    worker_report,
    worker_switch_report,
)
from everwork.service.triggers.fires import FIRES_MAX


async def list_workers(call: Call) -> Response:
    """Every worker that was ever declared."""
    return answer({"workers": [worker_report(view) for view in await call.admin.workers()]})


async def switch_worker_on(call: Call) -> Response:
    """Let a worker take jobs."""
    return await _switch_worker(call, is_on=True)


async def switch_worker_off(call: Call) -> Response:
    """Let a worker take no jobs."""
    return await _switch_worker(call, is_on=False)


async def forget_worker(call: Call) -> Response:
    """Forget a worker that nobody runs."""
    return answer(forgotten_report(*await call.admin.forget_worker(_reference(call, "worker"))))


async def list_triggers(call: Call) -> Response:
    """Every trigger."""
    return answer({"triggers": [trigger_report(view) for view in await call.admin.triggers()]})


async def switch_trigger_on(call: Call) -> Response:
    """Let a trigger fire."""
    return await _switch_trigger(call, is_on=True)


async def switch_trigger_off(call: Call) -> Response:
    """Let a trigger fire no more."""
    return await _switch_trigger(call, is_on=False)


async def fire_trigger(call: Call) -> Response:
    """Let a trigger create its job now."""
    await call.body()
    return answer(fired_report(*await call.admin.fire_trigger(_trigger(call))))


async def list_fires(call: Call) -> Response:
    """The latest jobs of a trigger."""
    view = await call.admin.trigger(_trigger(call))
    fires = await call.admin.fires(view.entry.name, call.query["limit"])
    return answer(fires_report(view.entry, fires))


async def list_processes(call: Call) -> Response:
    """The managers and processes that live."""
    managers = await call.admin.managers()
    processes = await call.admin.processes()
    told = {"managers": [manager_report(one) for one in managers], "processes": [process_report(p) for p in processes]}
    return answer(told)


async def restart_process(call: Call) -> Response:
    """Ask for another process in the place of this one."""
    await call.body()
    return answer(restart_report(await call.admin.restart_process(call.named("process"))))


async def list_running(call: Call) -> Response:
    """The jobs that are leased now."""
    return answer(running_report(await call.admin.running(call.query["limit"])))


async def _switch_worker(call: Call, *, is_on: bool) -> Response:
    await call.body()
    return answer(worker_switch_report(await call.admin.switch_worker(_reference(call, "worker"), is_on)))


async def _switch_trigger(call: Call, *, is_on: bool) -> Response:
    await call.body()
    return answer(trigger_switch_report(await call.admin.switch_trigger(_trigger(call), is_on)))


def _trigger(call: Call) -> str:
    return f"{_reference(call, 'worker')}/{_reference(call, 'trigger')}"


def _reference(call: Call, name: str) -> str:
    """What somebody calls a worker or a trigger by: an id, or any title."""
    return checks.text(name, call.request.path_params[name], TITLE_CHARS_MAX)


_WORKERS: Final = "/api/v1/workers"
_WORKER: Final = f"{_WORKERS}/{{worker}}"
_PROCESSES: Final = "/api/v1/processes"
_TRIGGERS: Final = "/api/v1/triggers"
_TRIGGER: Final = f"{_TRIGGERS}/{{worker}}/{{trigger}}"
_SWITCHED_WORKER: Final = done("WorkerSwitch")
_SWITCHED_TRIGGER: Final = done("TriggerSwitch")

OPERATIONS: Final = (
    row("listWorkers", f"GET {_WORKERS}", list_workers, "List the workers", done("Workers"), permissions=READS),
    row("workerOn", f"POST {_WORKER}/on", switch_worker_on, "Let it take jobs", _SWITCHED_WORKER, body=NOTHING),
    row("workerOff", f"POST {_WORKER}/off", switch_worker_off, "Let it take no jobs", _SWITCHED_WORKER, body=NOTHING),
    row("forgetWorker", f"DELETE {_WORKER}", forget_worker, "Forget a worker", done("ForgottenWorker")),
    row("listTriggers", f"GET {_TRIGGERS}", list_triggers, "List the triggers", done("Triggers"), permissions=READS),
    row("triggerOn", f"POST {_TRIGGER}/on", switch_trigger_on, "Let it fire", _SWITCHED_TRIGGER, body=NOTHING),
    row("triggerOff", f"POST {_TRIGGER}/off", switch_trigger_off, "Let it not fire", _SWITCHED_TRIGGER, body=NOTHING),
    row("fireTrigger", f"POST {_TRIGGER}/fire", fire_trigger, "Fire it now", done("FiredTrigger"), body=NOTHING),
    row(
        "listFires",
        f"GET {_TRIGGER}/fires",
        list_fires,
        "The latest jobs of a trigger",
        done("Fires"),
        permissions=READS,
        query=(Field("limit", Whole(1, FIRES_MAX), "How many.", default=FIRES_DEFAULT),),
    ),
    row("listProcesses", f"GET {_PROCESSES}", list_processes, "What lives", done("Processes"), permissions=READS),
    row(
        "restartProcess",
        f"POST {_PROCESSES}/{{process}}/restart",
        restart_process,
        "Let another take its place",
        done("Restart"),
        body=NOTHING,
    ),
    row(
        "listRunning",
        "GET /api/v1/running",
        list_running,
        "What runs now, and where",
        done("Running"),
        permissions=READS,
        query=(Field("limit", Whole(1, RUNNING_JOBS_MAX), "How many.", default=RUNNING_JOBS_MAX),),
    ),
)
