"""pyright refuses the same calls as mypy, and an editor gets signatures, results and completion from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKED = [Path(__file__).with_name(name) for name in ("calls.py", "dependencies.py")]
SECONDS_MAX = 120


def pyright(script: str) -> list[str]:
    """The command that runs one of pyright's programs, with the node of the wheel."""
    spec = find_spec("pyright")
    assert spec is not None
    assert spec.origin is not None
    return [str(Path(sys.executable).with_name("node")), str(Path(spec.origin).parent / "dist" / script)]


def write_settings(folder: Path) -> None:
    """pyright's settings: strict, with this project, and with no comment that silences it."""
    wanted = {
        "extraPaths": [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
        "reportDeprecated": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(wanted))


def complaints(folder: Path) -> dict[tuple[str, int], list[str]]:
    """What pyright says of the programs in a folder, by file and line."""
    write_settings(folder)
    done = subprocess.run(
        [*pyright("index.js"), "--pythonpath", sys.executable, "--outputjson"],
        cwd=folder, capture_output=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    found: dict[tuple[str, int], list[str]] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        place = Path(one["file"]).name, one["range"]["start"]["line"] + 1
        found.setdefault(place, []).append(one["message"])
    return found


def test_pyright_refuses_what_is_marked_and_nothing_in_the_examples(tmp_path: Path) -> None:
    marked = {
        (file.name, at)
        for file in CHECKED
        for at, line in enumerate(file.read_text().splitlines(), 1)
        if "# type: ignore[" in line
    }
    for file in CHECKED:
        (tmp_path / file.name).write_text(file.read_text())
    for one in ("fastapi_shop", "webshop"):
        shutil.copytree(ROOT / "examples" / one, tmp_path / one)
    found = complaints(tmp_path)
    assert set(found) == marked, found
    said = "\n".join(text for texts in found.values() for text in texts)
    for name in ("amount", "nota", "dely", "delay", "customer"):
        assert f'"{name}"' in said


# An editor ----------------------------------------------------------------------------------------

PROGRAM = """from decimal import Decimal
from uuid import uuid4
from tests.typing.calls import count, pay

async def main() -> None:
    handle = await pay.enqueue(uuid4(), amount=Decimal(1))
    receipt = await handle.result()
    await pay.using(delay=5).enqueue()
    count.using()
"""


class Editor:
    """A language server, asked as an editor asks it."""

    def __init__(self, folder: Path, program: Path) -> None:
        write_settings(folder)
        self._program = program
        self._process = subprocess.Popen(
            [*pyright("langserver.index.js"), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )
        self._number = 0
        folders = [{"uri": folder.as_uri(), "name": "project"}]
        capabilities = {"workspace": {"configuration": True}}
        self.ask(
            "initialize", processId=None, rootUri=folder.as_uri(), capabilities=capabilities, workspaceFolders=folders
        )
        self._send(method="initialized", params={})
        document = {"uri": program.as_uri(), "languageId": "python", "version": 1, "text": program.read_text()}
        self._send(method="textDocument/didOpen", params={"textDocument": document})

    def at(self, method: str, word: str, *, behind: bool = False) -> Any:
        """Ask about the place of a word in the program."""
        text = self._program.read_text()
        place = text.index(word) + (len(word) if behind else 0)
        line = text.count("\n", 0, place)
        position = {"line": line, "character": place - (text.rfind("\n", 0, place) + 1)}
        return self.ask(f"textDocument/{method}", textDocument={"uri": self._program.as_uri()}, position=position)

    def ask(self, method: str, **params: Any) -> Any:
        """One request; what the server asks meanwhile gets an answer, too."""
        self._number += 1
        self._send(id=self._number, method=method, params=params)
        while True:
            message = self._receive()
            if "method" in message and "id" in message:
                self._send(id=message["id"], result=self._answer(message))
            elif message.get("id") == self._number:
                return message["result"]

    def _answer(self, message: dict[str, Any]) -> Any:
        if message["method"] != "workspace/configuration":
            return None
        python = {"pythonPath": sys.executable, "analysis": {}}
        return [python if one.get("section") == "python" else None for one in message["params"]["items"]]

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.communicate()

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while (line := self._process.stdout.readline().strip()) or not length:
            assert line or self._process.poll() is None, "the language server has ended"
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message


@pytest.fixture
def editor(tmp_path: Path) -> Iterator[Editor]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    editor = Editor(tmp_path, program)
    yield editor
    editor.close()


def test_an_editor_shows_signatures_and_results_and_completes_arguments_and_options(editor: Editor) -> None:
    help_ = editor.at("signatureHelp", ".using(delay=5).enqueue(", behind=True)
    assert "customer: UUID, amount: Decimal, note: str" in help_["signatures"][0]["label"]
    assert "ctx" not in help_["signatures"][0]["label"]
    assert "JobHandle[Receipt]" in editor.at("hover", "handle")["contents"]["value"]
    assert "receipt: Receipt" in editor.at("hover", "receipt")["contents"]["value"]
    arguments = {one["label"] for one in editor.at("completion", ".using(delay=5).enqueue(", behind=True)["items"]}
    assert {"customer=", "amount=", "note="} <= arguments
    options = {one["label"] for one in editor.at("completion", "count.using(", behind=True)["items"]}
    assert {"delay=", "priority=", "dedupe_key=", "tx="} <= options
