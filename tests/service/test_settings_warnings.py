"""Warnings about the permissions of the settings file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everwork.server.settings_warnings import file_warnings

WITH_PASSWORD = 'engine = "postgresql://app:hunter2-hunter2@db.example.org/jobs"\n'
WITHOUT = 'engine = "postgresql://app@db.example.org/jobs"\n'


@pytest.mark.parametrize(
    ("text", "mode", "warnings"),
    [
        (WITHOUT, 0o644, []),
        (WITHOUT, 0o664, []),
        ("", 0o646, ["can be changed by any user"]),
        (WITH_PASSWORD, 0o600, []),
        (WITH_PASSWORD, 0o640, []),
        (WITH_PASSWORD, 0o644, ["contains a password and can be read by any user"]),
        (WITH_PASSWORD, 0o666, ["can be changed by any user", "contains a password"]),
        ('engine = "redis://:hunter2-hunter2@db.example.org:6379/0"\n', 0o604, ["contains a password"]),
    ],
)
def test_others_should_not_write_the_file_nor_read_a_password(
    tmp_path: Path, text: str, mode: int, warnings: list[str]
) -> None:
    file = tmp_path / "everwork.toml"
    file.write_text(text)
    file.chmod(mode)
    told = list(file_warnings(file))
    assert len(told) == len(warnings)
    for one, part in zip(told, warnings, strict=True):
        assert (part in one, "hunter2" in one) == (True, False)
        assert one.startswith(f"{file} ")
        assert re.search(rf"run: chmod o-[rw] {re.escape(str(file))}$", one)


def test_without_a_file_there_is_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(file_warnings(None)) == []
