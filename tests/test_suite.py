"""The suite itself: which tests run where, and that none can outlive its time."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from tests.forked import run_forked
from tests.servers import free_port
from tests.stores import ENGINES
from tools.seeded_faults import FAULTS, SOURCE

ROOT: Final = Path(__file__).resolve().parents[1]
DEADLINE_S: Final = 30
CONFORMANCE: Final = "tests/conformance/"
CASES_MIN: Final = 1_000
"""So many cases of the contract each engine passes at the least; today it is 1,080."""

LEAVES_A_GRANDCHILD: Final = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
child.wait()
"""
NEVER_ENDS: Final = """
import signal, subprocess, sys
import pytest

@pytest.fixture
def never_closed():
    yield
    signal.pause()

@pytest.fixture
def never_left():
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]):
        yield

def test_that_waits_for_ever(never_closed, never_left):
    signal.pause()
"""
IN_THE_BACKGROUND: Final = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
from tests.children import guard_children
guard_children()
shows = "import signal; print([one for one in (2, 1, 3) if signal.getsignal(one) is not signal.SIG_IGN])"
heard = eval(subprocess.run([sys.executable, "-c", shows], capture_output=True, text=True, check=True).stdout)
print(*(signal.Signals(number).name for number in heard))
"""


def test_every_engine_passes_the_whole_contract(request: pytest.FixtureRequest) -> None:
    asked: dict[str, set[str]] = defaultdict(set)
    cases: dict[str, int] = defaultdict(int)
    for item in request.session.items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("engine_name")  # type: ignore[attr-defined]
        if item.nodeid.startswith(CONFORMANCE) and isinstance(name, str) and "driver" not in item.fixturenames:  # type: ignore[attr-defined]
            asked[name].add(item.nodeid.partition("[")[0])
            cases[name] += 1
    is_whole = not request.config.option.keyword and not any("::" in one for one in request.config.args)
    if is_whole and asked:
        assert all(asked[name] == asked[ENGINES[0]] for name in ENGINES)
    if is_whole and [(ROOT / one).resolve() for one in request.config.args] == [ROOT / "tests"]:
        assert min(cases[name] for name in ENGINES) >= CASES_MIN, dict(cases)


def test_a_failing_block_leaves_no_process_behind() -> None:
    grandchild = 0

    def run_out_of_time() -> None:
        nonlocal grandchild
        command = [sys.executable, "-c", LEAVES_A_GRANDCHILD]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            grandchild = os.pidfd_open(int(child.stdout.readline()))
            raise TimeoutError

    with pytest.raises(TimeoutError):
        run_out_of_time()
    assert select.select([grandchild], [], [], DEADLINE_S)[0], "the grandchild still runs"
    os.close(grandchild)


def test_a_test_that_never_ends_ends_with_its_fixtures_also_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "test_endless.py").write_text(NEVER_ENDS)
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--timeout", "0.5"]
    command += ["-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path]
    done = subprocess.run(
        [*command, tmp_path / "test_endless.py"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert "1 failed, 1 error" in done.stdout, done.stdout


def test_children_do_not_ignore_what_a_run_in_the_background_ignores() -> None:
    command = [sys.executable, "-c", IN_THE_BACKGROUND]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["SIGINT", "SIGHUP", "SIGQUIT"], done.stdout


def test_an_npm_registry_that_cannot_be_reached_is_reported_once(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path), "npm_config_registry": f"http://127.0.0.1:{free_port()}"}
    for options in (["--install"], []):  # As `make test` does, and as a test does.
        command = [sys.executable, "-m", "tools.node", *options]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True, timeout=DEADLINE_S
        )
        assert done.stderr.startswith("NO JAVASCRIPT PACKAGES"), done.stderr
        assert not done.stdout


def test_a_forked_program_has_its_own_arguments_folder_environment_and_streams(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    env = {**os.environ, "EVERWORK_ENGINE": url}
    created = run_forked("everwork", ["jobs", "create", "--file", "-"], cwd=tmp_path, env=env, stdin=b'{"type": "a"}\n')
    assert (created.returncode, created.stderr) == (0, b"")
    assert (tmp_path / "jobs.db").exists()
    refused = run_forked("everwork", ["nonsense"], cwd=tmp_path, env=env)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"nonsense" in refused.stderr


def test_a_forked_program_that_does_not_end_is_killed_with_its_group() -> None:
    with pytest.raises(TimeoutError, match="did not end"):
        run_forked("http.server", ["0", "--bind", "127.0.0.1"], timeout=0.1)
    assert run_forked("everwork", ["version"]).returncode == 0


def test_every_seeded_fault_finds_its_line() -> None:
    found = {name: (ROOT / SOURCE / fault.file).read_text().count(fault.old) for name, fault in FAULTS.items()}
    assert [name for name, times in found.items() if times != 1] == []
