"""The application that tests rehearse. Its store must never be reached: there is none."""

from __future__ import annotations

from dataclasses import dataclass, field

from everwork import AbstractWorker, Event, EventCollector, Everwork, Interval, RetryPolicy, Trigger, WorkerSettings


@dataclass
class World:
    """What handlers touch: how many of the next calls fail, and what has been done."""

    failures: int = 0
    done: list[object] = field(default_factory=list)

    def touch(self, what: object) -> None:
        """Do something, unless it is to fail."""
        self.done.append(what)
        if self.failures:
            self.failures -= 1
            raise LookupError("the world is broken")


def an_application(world: World) -> Everwork:
    """Orders that are placed, and for each a letter that is sent."""
    app = Everwork("redis://127.0.0.1:1/")

    @app.job("order-place")
    async def place(order: int, events: EventCollector) -> dict[str, int]:
        world.touch(("order", order))
        events.emit(Event(source="letter-send", kwargs={"order": order}))
        return {"order": order}

    @app.job("letter-send")
    def send(order: int) -> None:
        world.touch(("letter", order))

    return app


class Herald(AbstractWorker):
    """A worker class with a schedule."""

    told: list[str] = []  # noqa: RUF012 - shared with the tests on purpose

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(
            title="Herald",
            sources={"news"},
            retry=RetryPolicy(max_attempts=2),
            triggers=[Trigger(title="hourly", schedule=Interval(hours=1), kwargs={"text": "the hour"})],
        )

    async def startup(self) -> None:
        """Begin."""
        self.told.append("startup")

    async def shutdown(self) -> None:
        """End."""
        self.told.append("shutdown")

    async def __call__(self, text: str) -> None:
        """Tell it."""
        self.told.append(text)
