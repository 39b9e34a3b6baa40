"""Worker classes in a rehearsal: one instance of each, started when the first job is to be run."""

from __future__ import annotations

from collections.abc import Sequence

from everwork.app.schedules import CronSchedule, scheduled_triggers
from everwork.app.subscribed import subscribe
from everwork.manager.worker import AbstractWorker
from everwork.manager.worker_pool import Post, handler_of
from everwork.runtime.handler import Handler, Place
from everwork.service.policies import declare_policies
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled


class Cast:
    """The worker classes of one rehearsal."""

    def __init__(self, workers: Sequence[type[AbstractWorker]]) -> None:
        self._settings = {one: one._get_settings() for one in workers}  # noqa: SLF001 - the name is a promise to users
        self._posts: list[Post] = []
        self._started: dict[type[AbstractWorker], AbstractWorker] = {}
        self.triggers: list[Scheduled] = []

    async def declare(self, service: JobService) -> None:
        """Let the store know the workers' groups and policies, as a manager does."""
        for index, (worker, settings) in enumerate(self._settings.items()):
            subscribed = await subscribe(service.engine, settings)
            self._posts.append(Post.of(settings, worker, subscribed.places, index))
            await declare_policies(service.engine, subscribed.policies)
            self.triggers += scheduled_triggers(settings, CronSchedule())

    @property
    def places(self) -> list[Place]:
        """Where the workers take jobs from."""
        return [place for post in self._posts for place in post.places]

    async def handlers(self) -> list[Handler]:
        """The workers as the runtime sees them; those that were not started yet are."""
        for post in self._posts:
            if post.worker not in self._started:
                worker = post.worker()
                await worker.startup()
                self._started[post.worker] = worker
        return [handler_of(self._started[post.worker], self._settings[post.worker], post) for post in self._posts]

    async def shutdown(self) -> None:
        """Let every worker that was started clean up, the last first."""
        while self._started:
            await self._started.popitem()[1].shutdown()

    @property
    def is_started(self) -> bool:
        """Whether somebody must clean up."""
        return bool(self._started)
