"""What everwork worker finds in a user's module, and what it says of mistakes there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from everwork import Everwork
from everwork.cli.target import Target, UserCode
from everwork.exceptions import BadConfiguration, EverworkError, InvalidInput

APP = 'from everwork import Everwork\napp = Everwork("sqlite:///jobs.db")\n'
WANTED = "a ProcessManager, an Everwork application, or a function without arguments that returns one"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for a program of the user's; what is imported from it is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    for name in ("shop", "shop.workers", "shop_parts"):
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def made(folder: Path, code: str, target: str = "shop") -> object:
    """What is run of a module with this code."""
    (folder / "shop.py").write_text(code)
    users = UserCode(Target.parse(target), folder)
    found = users.load()
    with asyncio.Runner() as runner:
        return users.program(found, runner)


@pytest.mark.parametrize(
    ("code", "target"),
    [
        (APP, "shop"),
        (APP + "manager = app", "shop:manager"),
        (APP + "class jobs:\n    of_today = app", "shop:jobs.of_today"),
        (APP + "def make(url='sqlite:///jobs.db', *rest):\n    return app", "shop:make"),
        (APP + "async def make():\n    return app", "shop:make"),
    ],
)
def test_an_application_is_found_by_its_name_or_made_by_a_function(folder: Path, code: str, target: str) -> None:
    assert isinstance(made(folder, code, target), Everwork)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("shop.py", "must name a module, not a file: write shop:NAME"),
        ("./src/shop.py:app", "must name a module, not a file: write src.shop:app"),
        ("shop:", "must be MODULE or MODULE:NAME, such as app:manager, not 'shop:'"),
        (":app", "must be MODULE or MODULE:NAME, such as app:manager, not ':app'"),
        ("shop:a:b", "must be MODULE or MODULE:NAME, such as app:manager, not 'shop:a:b'"),
        ("my-shop", "must be MODULE or MODULE:NAME, such as app:manager, not 'my-shop'"),
        ("..shop:app", "must be MODULE or MODULE:NAME, such as app:manager, not '..shop:app'"),
    ],
)
def test_a_target_that_cannot_be_one(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Target.parse(text)
    assert str(refused.value) == f"target: {complaint}"


@pytest.mark.parametrize(
    ("code", "suggested"),
    [
        (APP, "shop:app"),
        (
            "import everwork as e\nmail: e.Everwork = e.Everwork('a')\nteam = e.ProcessManager()",
            "shop:mail or shop:team",
        ),
        ("from everwork import Everwork\ndef make():\n    app = Everwork('a')\n    return app", "shop:NAME"),
        ("app = (", "shop:NAME"),
    ],
)
def test_a_file_is_answered_with_the_programs_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, suggested: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "shop.py").write_text(code)
    with pytest.raises(InvalidInput, match=f"^target: must name a module, not a file: write {suggested}$"):
        Target.parse("./shop.py")


@pytest.mark.parametrize(
    ("code", "target", "complaint"),
    [
        (APP, "store", "no module 'store' in FOLDER (--app-dir) or among the installed packages"),
        (APP, "shop.workers:app", "no module 'shop.workers' in FOLDER (--app-dir) or among the installed"),
        (APP, "shop:jobs", "module 'shop' (FOLDER/shop.py) has no 'jobs'; it has shop:app"),
        ("", "shop", f"module 'shop' (FOLDER/shop.py) has neither 'manager' nor 'app'; name {WANTED}"),
        ("app = 5", "shop", f"shop:app is a int; it must be {WANTED}"),
        (APP + "manager = Everwork", "shop", f"shop:manager is the class Everwork; it must be {WANTED}"),
        ("def app(url, *, name): ...", "shop", f"shop:app takes arguments (url, name); it must be {WANTED}"),
        (APP + "@app.job('a')\nasync def send() -> None: ...", "shop:send", "shop:send is a JobFunction; it must be"),
        ("def app(): ...", "shop", "shop has returned None; it must return a ProcessManager or an Everwork"),
        ("import json\nimport nowhere", "shop", "shop.py, line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1\nx.y", "shop", "shop.py, line 2: AttributeError: 'int' object has no attribute 'y'"),
        ("\ndef app(:", "shop", "shop.py, line 2: SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "shop", "shop.py, line 1: the module exits here before there is anything to run"),
        ("import json\njson.loads('{')", "shop", "shop.py, line 2: JSONDecodeError: Expecting property name"),
        (APP + "app.job('')(print)", "shop", "shop.py, line 3: type: must have 1 to 255 characters, not 0"),
        (
            "from everwork import Process\nProcess(workers=[])",
            "shop",
            "shop.py, line 2: Process: workers: List should have at least 1 item",
        ),
        ("def app():\n    return 1 / 0", "shop", "shop.py, line 2: ZeroDivisionError: division by zero"),
        ("async def app():\n    return 1 / 0", "shop", "shop.py, line 2: ZeroDivisionError: division by zero"),
    ],
)
def test_a_mistake_in_a_program_is_told_with_its_place(folder: Path, code: str, target: str, complaint: str) -> None:
    with pytest.raises(EverworkError) as refused:
        made(folder, code, target)
    assert isinstance(refused.value, BadConfiguration)
    assert str(refused.value).startswith(complaint.replace("FOLDER", str(folder)))


def test_a_mistake_in_a_part_of_the_program_is_told_where_it_is(folder: Path) -> None:
    (folder / "shop_parts.py").write_text("\n\nimport nowhere")
    with pytest.raises(BadConfiguration, match=r"^shop_parts.py, line 3: ModuleNotFoundError"):
        made(folder, "import shop_parts")
