"""A worker as a user of the jobs API writes it, with stubs that protoc made from the published .proto.

    python worker.py ADDRESS TYPE

It knows nothing of Everwork's Python code. The key comes from WORKER_API_KEY, the stubs from PYTHONPATH. Every event is
one line of JSON on standard output; it works until it is terminated.
"""

# ruff: noqa: INP001
# mypy: ignore-errors
# As its users write it: the stubs are there when it runs, not when it is checked.

from __future__ import annotations

import collections
import concurrent.futures
import enum
import json
import os
import signal
import sys
from typing import Any

import grpc
import jobs_pb2
import jobs_pb2_grpc


class ErrorType(enum.Enum):
    """What kind of trouble an error text speaks of."""

    RETRYABLE = "retryable"
    RATE_LIMIT = "rate_limit"
    TEMPORARY = "temporary"
    PERMANENT = "permanent"


SIGNS = {
    ErrorType.RETRYABLE: ("connection refused", "timeout", "network unreachable"),
    ErrorType.RATE_LIMIT: ("rate limit", "too many requests"),
    ErrorType.TEMPORARY: ("service unavailable", "server error"),
}


class ErrorHandler:
    """Fails jobs by four strategies, chosen by the error's text."""

    def __init__(self, stub: Any, metadata: list[tuple[str, str]]) -> None:
        self.stub = stub
        self.metadata = metadata

    def classify_error(self, error: Exception) -> ErrorType:
        """The kind of an error; what is not known is permanent."""
        text = str(error).lower()
        return next((kind for kind, signs in SIGNS.items() if any(sign in text for sign in signs)), ErrorType.PERMANENT)

    def handle_job_error(self, job_key: str, retries: int, error: Exception, attempt: int) -> None:
        """Fail a job as its error deserves."""
        kind = self.classify_error(error)
        if kind is ErrorType.PERMANENT or retries <= 0:
            self.fail(job_key, 0, f"Permanent error: {error}", None, kind)
        elif kind is ErrorType.RETRYABLE:
            backoff_ms = min(1000 * 2**attempt, 300_000)
            self.fail(job_key, retries - 1, f"Attempt {attempt}: {error}", backoff_ms, kind)
        elif kind is ErrorType.RATE_LIMIT:
            self.fail(job_key, retries - 1, f"Rate limit: {error}", 60_000, kind)
        else:
            self.fail(job_key, retries - 1, f"Temporary: {error}", 10_000, kind)

    def fail(self, job_key: str, retries: int, message: str, backoff_ms: int | None, kind: ErrorType) -> None:
        """Send the failure."""
        request = jobs_pb2.FailJobRequest(job_key=job_key, retries=retries, error_message=message)
        if backoff_ms is not None:
            request.backoff_timeout = backoff_ms
        response = self.stub.FailJob(request, metadata=self.metadata)
        say("failed", job_key, success=response.success, message=response.message, kind=kind.value, left=retries)


class JobWorker:
    """Polls for jobs of one type and works them off in threads."""

    def __init__(self, address: str, key: str, job_type: str, max_jobs: int = 10, timeout: int = 30_000) -> None:
        self.job_type = job_type
        self.max_jobs = max_jobs
        self.timeout = timeout
        self.running = False
        self.channel = grpc.insecure_channel(address)
        self.stub = jobs_pb2_grpc.JobsServiceStub(self.channel)
        self.metadata = [("x-api-key", key)]
        self.errors = ErrorHandler(self.stub, self.metadata)
        self.tries: collections.Counter[str] = collections.Counter()
        self.stream: Any = None

    def start(self) -> None:
        """Poll until somebody stops it."""
        self.running = True
        while self.running:
            try:
                self.activate_and_process_jobs()
            except grpc.RpcError as error:
                if self.running:
                    say("error", "", code=error.code().name, details=error.details())
                    return

    def stop(self) -> None:
        """End the poll that is under way, and poll no more."""
        self.running = False
        if self.stream is not None:
            self.stream.cancel()

    def activate_and_process_jobs(self) -> None:
        """One poll, and what it brings."""
        request = jobs_pb2.ActivateJobsRequest(
            type=self.job_type,
            worker="python-worker",
            timeout=self.timeout,
            max_jobs_to_activate=self.max_jobs,
            fetch_variable=["url", "method", "error", "errors"],
        )
        self.stream = self.stub.ActivateJobs(request, metadata=self.metadata)
        if not self.running:
            self.stream.cancel()  # The signal came before there was a stream to end.
        for response in self.stream:
            if not response.success:
                say("refused", "", message=response.error_message)
                continue
            with concurrent.futures.ThreadPoolExecutor(max_workers=self.max_jobs) as executor:
                for done in [executor.submit(self.process_job, job) for job in response.jobs]:
                    done.result()

    def process_job(self, job: Any) -> None:
        """Work one job off: done, or failed by its error's strategy."""
        variables = json.loads(job.variables)
        self.tries[job.job_key] += 1
        say("activated", job.job_key, retries=job.retries, variables=variables, deadline=job.deadline)
        try:
            result = self.request(variables, self.tries[job.job_key])
        except Exception as error:  # noqa: BLE001 - whatever the work raises
            self.errors.handle_job_error(job.job_key, job.retries, error, self.tries[job.job_key])
        else:
            self.complete_job(job.job_key, result)

    def request(self, variables: dict[str, Any], attempt: int) -> dict[str, str]:
        """Stands for an HTTP request that fails as often as the job says."""
        if attempt <= int(variables.get("errors", "0")):
            raise ConnectionError(variables["error"])
        return {"httpStatus": "200", "url": variables["url"], "method": variables.get("method", "GET")}

    def complete_job(self, job_key: str, variables: dict[str, str]) -> None:
        """Send the result."""
        request = jobs_pb2.CompleteJobRequest(job_key=job_key, variables=variables)
        response = self.stub.CompleteJob(request, metadata=self.metadata)
        say("completed", job_key, success=response.success, message=response.message)


def say(event: str, job_key: str, **facts: Any) -> None:
    """One event, for whoever reads along."""
    sys.stdout.write(json.dumps({"event": event, "key": job_key, **facts}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    worker = JobWorker(sys.argv[1], os.environ["WORKER_API_KEY"], sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.start()
    say("stopped", "")
