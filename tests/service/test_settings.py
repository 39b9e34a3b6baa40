"""Settings: where they come from, which goes first, and what a mistake is answered with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from everwork.exceptions import BadConfiguration
from everwork.server.settings import Settings, declared_settings, engine_url, load
from everwork.server.settings_reference import REFERENCE
from everwork.server.settings_warnings import suspicious_variables
from everwork.service.policies import with_defaults
from tools.reference.settings import entries

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str | bytes, name: str = "everwork.toml") -> Path:
    """A settings file."""
    path = Path(name)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def complaint(config: str | Path | None = None, environ: dict[str, str] | None = None, **flags: Any) -> str:
    """What a mistake is answered with."""
    with pytest.raises(BadConfiguration) as caught:
        load(config, environ or {}, flags)
    return str(caught.value)


# Where they come from -----------------------------------------------------------------------------------


def test_without_anything_the_defaults_hold() -> None:
    assert load(None, {}, {}) == Settings()
    assert (Settings().engine, Settings().host, Settings().has_auth) == ("sqlite:///everwork.db", "127.0.0.1", True)


def test_flags_go_before_the_environment_and_the_environment_before_the_file() -> None:
    write('host = "10.0.0.1"\ngrpc_port = 1\nhttp_port = 2\n')
    environ = {"EVERWORK_GRPC_PORT": "11", "EVERWORK_HTTP_PORT": "12"}
    settings = load(None, environ, {"http_port": 22, "host": None})
    assert (settings.host, settings.grpc_port, settings.http_port) == ("10.0.0.1", 11, 22)


def test_a_file_that_is_named_takes_the_place_of_the_one_in_the_working_directory() -> None:
    write("grpc_port = 1")
    assert load(write("http_port = 2", "other.toml"), {}, {}) == Settings(http_port=2)


def test_every_setting_can_be_set_by_file_environment_and_flag(folder: Path) -> None:
    certificate(folder)
    values: dict[str, Any] = {
        "engine": "redis://localhost/0",
        "host": "::1",
        "grpc_port": 0,
        "http_port": 65_535,
        "auth": "off",
        "insecure": "on",
        "tls_certificate": "server.pem",
        "tls_key": "server.key",
        "tls_client_ca": "ca.pem",
        "long_poll_seconds": 2.5,
        "pollers_per_type": 7,
        "pollers_per_key": 8,
        "requests_per_key": 9,
        "searches_per_key": 10,
        "streams_per_key": 15,
        "tenant_factor": 11,
        "max_types": 12,
        "max_new_types": 13,
        "types_keep_hours": 14.5,
        "rate_limit": 0.5,
        "max_connections": 77,
        "max_streams": 78,
        "max_bytes_in_flight": 5_000_000,
        "max_bytes_in_flight_per_key": 4_000_000,
        "trusted_proxies": ["10.0.0.0/8", "::1"],
        "masked_variables": ["pin", "session id"],
        "shutdown_seconds": 0,
        "offline": "spool.db",
        "offline_max_bytes": 2_000_000,
        "offline_max_age": 60.5,
        "log_level": "debug",
        "log_format": "json",
        "failed_job_retry_hours": 6.5,
        "failed_job_retry_rounds": 2,
        "breaker_failures": 4,
        "breaker_seconds": 90.5,
    }
    assert set(values) | {"api_key", "types"} == {one.name for one in fields(Settings)}
    texts = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in values.items()}
    write("".join(f"{name} = {value!r}\n" for name, value in values.items()), "all.toml")
    by_file = load("all.toml", {}, {})
    assert by_file == load(None, {f"EVERWORK_{name.upper()}": text for name, text in texts.items()}, {})
    assert by_file == load(None, {}, values) == load(None, {}, texts)
    assert all(getattr(by_file, name) != getattr(Settings(), name) for name in values)


def test_an_empty_variable_is_none() -> None:
    assert load(None, {"EVERWORK_HOST": "", "EVERWORK_API_KEY": "", "EVERWORK_GRPC_PORT": ""}, {}) == Settings()


def test_an_empty_variable_lets_no_name_be_masked() -> None:
    assert load(None, {"EVERWORK_MASKED_VARIABLES": ""}, {}).masked_variables == ()


def test_a_file_may_be_empty_or_begin_with_a_mark_of_its_encoding() -> None:
    write("")
    assert load(None, {}, {}) == Settings()
    write(b"\xef\xbb\xbfgrpc_port = 5\r\n")
    assert load(None, {}, {}).grpc_port == 5


def test_a_file_may_be_a_pipe_if_it_was_named(folder: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"grpc_port = 5")
    os.close(writer)
    assert load(f"/dev/fd/{reader}", {}, {}).grpc_port == 5
    os.close(reader)


# Mistakes -----------------------------------------------------------------------------------------------

BAD_VALUES: dict[str, list[Any]] = {
    "engine": [5, ["sqlite:///a.db"]],
    "host": ["", "a b", "http://x", 5, "x" * 256, "a\0b"],
    "grpc_port": [70_000, -1, 65_536, 1.5, True, "27500", []],
    "http_port": [70_000],
    "auth": ["onn", "On", "", True, 1],
    "tls_certificate": ["", 5, "a\0b", "x" * 5_000],
    "long_poll_seconds": [-1, 301, "30", float("nan"), float("inf")],
    "pollers_per_type": [0, 100_001, 1.5],
    "pollers_per_key": [0, 100_001, 1.5],
    "requests_per_key": [0, 100_001, 1.5],
    "searches_per_key": [0, 1_001, "16"],
    "streams_per_key": [0, 100_001, 1.5],
    "tenant_factor": [0, 1_001, 1.5],
    "rate_limit": [-0.1, 1_000_001, "10"],
    "max_types": [0, 1_000_001, 1.5],
    "max_new_types": [0, 1_000_001, 1.5],
    "types_keep_hours": [0, 87_841, "1"],
    "max_connections": [9, 100_001, 50.5, "50"],
    "max_streams": [0, 100_001, 1.5],
    "max_bytes_in_flight": [1_048_575, 2**40 + 1, 1.5],
    "max_bytes_in_flight_per_key": [1_048_575, 2**40 + 1, 1.5],
    "trusted_proxies": ["10.0.0.1", ["10.0.0.256"], [5], [""], ["localhost"], {"a": 1}],
    "masked_variables": ["pin", [5], [""], ["a\0b"], {"a": 1}],
    "shutdown_seconds": [-1, 601],
    "log_level": ["loud", "WARNING", 10],
    "log_format": ["xml", "JSON", 1],
    "failed_job_retry_hours": [0, -1, 8_761, "soon", True],
    "failed_job_retry_rounds": [0, 101, 1.5, "often"],
    "breaker_failures": [0, -1, 1.5, "many", True],
    "breaker_seconds": [0.5, -1, "long", True],
    "types": [5, ["email-send"], "email-send"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_VALUES.items() for value in values])
def test_a_bad_value_names_its_key_where_it_stands_and_what_is_allowed(name: str, value: Any) -> None:
    write(f"{name} = {toml(value)}\n")
    told = complaint()
    assert told.startswith(f"{name} (file everwork.toml): must ")
    assert len(told) < 300
    assert "\n" not in told


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return '"' + value.replace("\0", "\\u0000") + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return str(value).lower()


@pytest.mark.parametrize(
    ("environ", "flags", "told"),
    [
        ({"EVERWORK_GRPC_PORT": "70000"}, {}, "grpc_port (environment variable EVERWORK_GRPC_PORT): must be a whole"),
        ({"EVERWORK_GRPC_PORT": "tcp://10.0.0.1:27500"}, {}, "grpc_port (environment variable EVERWORK_GRPC_PORT): "),
        ({"EVERWORK_GRPC_PORT": "9" * 5_000}, {}, "grpc_port (environment variable EVERWORK_GRPC_PORT): must be a"),
        ({"EVERWORK_TRUSTED_PROXIES": "10.0.0.1,x"}, {}, "trusted_proxies (environment variable EVERWORK_TRUSTED_"),
        ({}, {"grpc_port": "70000"}, "grpc_port (flag --grpc-port): must be a whole number from 0 to 65535, not 70000"),
        ({}, {"auth": "onn"}, "auth (flag --no-auth): must be on or off, not 'onn'"),
        ({}, {"long_poll_seconds": "nan"}, "long_poll_seconds (flag --long-poll-seconds): must be a number from 0 to"),
    ],
    ids=str,
)
def test_a_bad_value_of_the_environment_or_of_a_flag_names_it(
    environ: dict[str, str], flags: dict[str, str], told: str
) -> None:
    assert complaint(None, environ, **flags).startswith(told)


def test_an_unknown_key_is_named_with_its_file_and_what_is_allowed() -> None:
    file = write("colour = 'red'", "my.toml")
    told = complaint(file)
    assert told.startswith("'colour' (file my.toml): unknown setting; allowed: engine, host, grpc_port, http_port,")
    assert "api_key" not in told


@pytest.mark.parametrize("slip", ["grpc_prot", "grpc-port", "GRPC_PORT", "grpcport"])
def test_a_slip_of_the_pen_is_answered_with_what_was_meant(slip: str) -> None:
    write(f"{slip} = 1")
    assert f"'{slip}' (file everwork.toml): unknown setting; did you mean grpc_port? " in complaint()


def test_a_file_says_the_policies_of_types_and_which_are_paused() -> None:
    write(
        "failed_job_retry_hours = 24\n"
        '[types."email-send"]\nmax_running = 5\nrate_jobs = 100\npaused = true\nkeep_failed_hours = "off"\n'
        'errors = [{strategy = "temporary", text = "maintenance"}]\n'
        '[types.ping]\nbreaker_failures = "off"\npaused = false\n'
    )
    declared = load(None, {"EVERWORK_FAILED_JOB_RETRY_ROUNDS": "3"}, {}).declared
    assert declared == declared_settings(None, {"EVERWORK_FAILED_JOB_RETRY_ROUNDS": "3"})
    assert declared.types["email-send"] == {
        "max_running": 5,
        "rate_jobs": 100,
        "keep_failed_hours": None,
        "errors": [{"strategy": "temporary", "text": "maintenance"}],
    }
    assert declared.types["ping"] == {"breaker_failures": None, "breaker_seconds": None}
    assert declared.paused == {"email-send": True, "ping": False}
    assert declared.defaults == {"failed_job_retry_hours": 24, "failed_job_retry_rounds": 3}
    assert (
        load(None, {"EVERWORK_FAILED_JOB_RETRY_HOURS": "off"}, {}).declared.defaults["failed_job_retry_hours"] is None
    )


def test_a_breaker_for_all_types_is_given_by_one_setting_and_taken_back_as_a_whole() -> None:
    assert load(None, {}, {}).declared.defaults == {}
    write("breaker_failures = 3\nbreaker_seconds = 60\n")
    assert load(None, {}, {}).declared.defaults == {"breaker_failures": 3, "breaker_seconds": 60}
    write('breaker_failures = "off"\n')
    assert load(None, {}, {}).declared.defaults == {"breaker_failures": None, "breaker_seconds": None}


def test_programs_read_from_the_environment_what_holds_for_all_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERWORK_FAILED_JOB_RETRY_HOURS", "6")
    monkeypatch.setenv("EVERWORK_FAILED_JOB_RETRY_ROUNDS", "off")
    assert with_defaults({"base": 2}) == {"base": 2, "failed_job_retry_hours": 6, "failed_job_retry_rounds": None}
    assert with_defaults({"failed_job_retry_hours": None})["failed_job_retry_hours"] is None
    monkeypatch.setenv("EVERWORK_BREAKER_FAILURES", "off")
    assert with_defaults({})["breaker_seconds"] is None
    monkeypatch.setenv("EVERWORK_FAILED_JOB_RETRY_HOURS", "soon")
    told = r"^failed_job_retry_hours \(environment variable EVERWORK_FAILED_JOB_RETRY_HOURS\): must be a number from"
    with pytest.raises(BadConfiguration, match=told):
        with_defaults({})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "base = 2026-11-01",
            "types.'x'.base (file everwork.toml): must be a number from 0 to 316224000, not 2026-11-01",
        ),
        (
            "max_running = true",
            "types.'x'.max_running (file everwork.toml): must be a whole number from 1 to 1000000, not true",
        ),
        ("max_running = 0", "types.'x'.max_running (file everwork.toml): must be a whole number from 1 to 1000000"),
        (
            "max_runing = 1",
            "types.'x'.max_runing (file everwork.toml): unknown policy field; did you mean max_running",
        ),
        ("paused = 1", "types.'x'.paused (file everwork.toml): must be true or false, not 1"),
        ("breaker_failures = 0", "types.'x'.breaker_failures (file everwork.toml): must be a whole number from 1"),
        ("rate_seconds = 5", "types.'x'.rate_jobs (file everwork.toml): is required with rate_seconds"),
        ("max_attempts = 101", "types.'x'.max_attempts (file everwork.toml): must be a whole number from 1 to 100"),
        ("base = -1", "types.'x'.base (file everwork.toml): must be a number from 0 to"),
        ("errors = [{text = 'a'}]", "types.'x'.errors.strategy (file everwork.toml): is required"),
        ("errors = 'a'", "types.'x'.errors (file everwork.toml): must be a list of rules"),
    ],
)
def test_a_mistake_about_a_type_is_named_by_its_place(line: str, told: str) -> None:
    write(f"[types.x]\n{line}\n")
    assert complaint().startswith(told)


def test_types_are_said_of_in_the_file_only() -> None:
    refused = "environment variable EVERWORK_TYPES: types can be configured only in the settings file"
    assert complaint(None, {"EVERWORK_TYPES": "x"}) == refused


def test_settings_are_flat() -> None:
    write("[server]\nhost = '127.0.0.1'")
    assert complaint().startswith("'server' (file everwork.toml): unknown setting; allowed: ")


@pytest.mark.parametrize("variable", ["EVERWORK_GRPC_PROT", "EVERWORK_ENGIN", "EVERWORK_APIKEY", "EVERWORK_TLS_KEYS"])
def test_a_misspelt_variable_is_told(variable: str) -> None:
    told = complaint(None, {variable: "x"})
    assert told.startswith(f"environment variable {variable}: is unknown; did you mean EVERWORK_")
    with pytest.raises(BadConfiguration, match=re.escape(told)):
        engine_url(None, {variable: "x"}, "sqlite:///a.db")


def test_variables_of_others_are_none_of_our_business() -> None:
    names = [
        "DEBUG",
        "TEST_ENGINES",
        "PORT",
        "SERVICE_HOST",
        "SERVICE_PORT",
        "PORT_27500_TCP_ADDR",
        "REDIS_PASSWORD",
        "",
    ]
    assert load(None, {f"EVERWORK_{name}": "x" for name in names} | {"GRPC_PROT": "x"}, {}) == Settings()


@pytest.mark.parametrize(
    "variable",
    [
        *("DEBUG", "JOBS_PER_TICK", "REDIS_PASSWORD", "SUPERVISED", "IMAGE", "TEST_ENGINES", "TEST_EVERYTHING", ""),
        *("DJANGO_BACKEND", "DJANGO_QUEUES", "DJANGO_CONCURRENCY", "TEST_SITE", "HTTP_PORT", "VERSION", "HOME"),
        # Kubernetes sets these for services called everwork, everwork-http and everwork-grpc.
        *("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT_27500_TCP", "PORT_27500_TCP_PORT"),
        *("HTTP_SERVICE_PORT", "GRPC_SERVICE_PORT", "GRPC_PORT_27500_TCP_PORT"),
    ],
)
def test_variables_of_others_give_no_warning(variable: str) -> None:
    assert suspicious_variables({f"EVERWORK_{variable}": "1", "REST_PORT": "1"}) == []
    assert suspicious_variables({"EVERWORK_PORT": "tcp://10.0.0.1:27500"}) == []


@pytest.mark.parametrize("name", ["rest_port", "api_port", "web_port", "port", "http", "engine_url"])
def test_a_variable_that_resembles_a_setting_gives_a_warning(name: str) -> None:
    [warning] = suspicious_variables({f"EVERWORK_{name.upper()}": "1"})
    assert warning.startswith(f"environment variable EVERWORK_{name.upper()} is unknown and ignored; did you mean ")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"grpc_port = 1\ngrpc_port = 2\n", "cannot read everwork.toml: it is not TOML: Cannot overwrite a value"),
        (b"host = 'a'\ngrpc_port = \n", "(at line 2, column 13)"),
        (b"\x7fELF\x02\x01\x00\xff\xfe", "cannot read everwork.toml: it is not UTF-8 text (line 1)"),
        (b"# fine\nhost = '\xff'", "cannot read everwork.toml: it is not UTF-8 text (line 2)"),
        (b"\0" * 100, "cannot read everwork.toml: it is not TOML: "),
        (b"a = " + b"[" * 100_000, "cannot read everwork.toml: it is nested too deeply; settings are flat"),
        (b"grpc_port = " + b"9" * 10_000, "cannot read everwork.toml: it is not TOML: "),
        (b"#" * 2_000_000, "cannot read everwork.toml: it is larger than 1,048,576 bytes"),
    ],
    ids=["twice", "broken", "binary", "a wrong byte", "zeros", "deep", "a long number", "huge"],
)
def test_a_file_that_cannot_be_used_says_why_and_where(content: bytes, told: str) -> None:
    write(content)
    assert told in complaint()


def test_what_is_no_file_is_no_settings(folder: Path) -> None:
    assert complaint("nope.toml") == "cannot read nope.toml: no such file"
    assert complaint(folder) == f"cannot read {folder}: it is not a regular file"
    assert complaint("a\0b").startswith("cannot read a\0b: ")
    assert complaint("/dev/zero").startswith("cannot read /dev/zero: it is larger than")
    os.mkfifo("everwork.toml")
    assert complaint() == "cannot read everwork.toml: it is not a regular file"


# Secrets ------------------------------------------------------------------------------------------------


def test_the_api_key_comes_from_the_environment_only() -> None:
    assert load(None, {"EVERWORK_API_KEY": "0123456789ab"}, {}).api_key == "0123456789ab"
    write("api_key = 'very-secret-key'")
    told = complaint()
    assert told.startswith("api_key (file everwork.toml): must not be set in a file")
    assert "EVERWORK_API_KEY" in told
    assert "very-secret-key" not in told


@pytest.mark.parametrize("text", ["short", "x" * 513, "schlüssel-für-alle", "a space inside"])
def test_an_api_key_that_cannot_be_used_is_refused_unseen(text: str) -> None:
    told = complaint(None, {"EVERWORK_API_KEY": text})
    assert told.startswith("EVERWORK_API_KEY (environment): must ")
    assert text not in told


def test_an_engine_that_is_no_text_is_refused_unseen() -> None:
    write('engine = ["redis://:sesame-secret@host/0"]')
    told = complaint()
    assert "must be a URL such as" in told
    assert "sesame" not in told


def test_secrets_are_not_shown() -> None:
    environ = {"EVERWORK_API_KEY": "very-secret-key", "EVERWORK_ENGINE": "postgresql://ann:hunter2@db/jobs"}
    settings = load(None, environ, {})
    for shown in (repr(settings), str(settings.shown())):
        assert "very-secret-key" not in shown
        assert "hunter2" not in shown
        assert "postgresql://ann:***@db/jobs" in shown
    assert list(settings.shown()) == [one.name for one in fields(Settings)]


# Together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_on_a_loopback_address_authentication_may_be_off(host: str) -> None:
    assert not load(None, {}, {"auth": "off", "host": host}).has_auth


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "example.org", "127.0.0.1.nip.io"]
)
def test_elsewhere_authentication_cannot_be_off(host: str) -> None:
    write("auth = 'off'")
    told = complaint(None, {}, host=host)
    assert told.startswith(f"auth (file everwork.toml): must be on when host is {host}; only a loopback address")


def certificate(folder: Path, name: str = "server") -> None:
    """A certificate, its key and whoever signed it, as files."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))


def test_tls_needs_a_certificate_and_its_key(folder: Path) -> None:
    certificate(folder)
    certificate(folder, "another")
    pair: dict[str, Any] = {"tls_certificate": "server.pem", "tls_key": "server.key"}
    assert load(None, {}, pair).tls_key == Path("server.key")
    assert complaint(tls_certificate="server.pem") == (
        "tls_certificate (flag --tls-certificate): must be set together with tls_key"
    )
    assert complaint(tls_key="server.key").endswith("must be set together with tls_certificate")
    assert complaint(tls_client_ca="ca.pem").endswith("must be set together with tls_key")
    assert "another.key must be a PEM key without a password that belongs to" in complaint(
        **pair | {"tls_key": "another.key"}
    )


def test_tls_files_must_be_there_and_be_what_they_should(folder: Path) -> None:
    certificate(folder)
    write("no PEM", "text.pem")
    os.mkfifo("pipe.pem")
    pair: dict[str, Any] = {"tls_certificate": "server.pem", "tls_key": "server.key"}
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        assert complaint(**pair | {name: "nope.pem"}).endswith(": cannot read nope.pem: No such file or directory")
        assert complaint(**pair | {name: "pipe.pem"}).endswith(": cannot read pipe.pem: it is not a regular file")
        assert complaint(**pair | {name: str(folder)}).endswith(f": cannot read {folder}: it is not a regular file")
        assert "PEM" in complaint(**pair | {name: "text.pem"})


def test_a_tls_key_with_a_password_is_refused_without_asking_for_it(folder: Path) -> None:
    certificate(folder)
    key = load_pem_private_key(Path("server.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2"))
    write(locked, "locked.key")
    told = complaint(tls_certificate="server.pem", tls_key="locked.key")
    assert told.startswith("tls_key (flag --tls-key): locked.key must be a PEM key without a password that belongs to")


# The engine alone ---------------------------------------------------------------------------------------


def test_a_command_s_engine_comes_from_flag_environment_file_or_default() -> None:
    assert engine_url(None, {}, None) == "sqlite:///everwork.db"
    write("engine = 'sqlite:///file.db'\ntls_key = 'not-readable-by-me.pem'")
    environ = {"EVERWORK_ENGINE": "sqlite:///environment.db"}
    assert engine_url(None, {}, None) == "sqlite:///file.db"
    assert engine_url(None, environ, None) == "sqlite:///environment.db"
    assert engine_url("everwork.toml", environ, "sqlite:///flag.db") == "sqlite:///flag.db"


# Around it ----------------------------------------------------------------------------------------------


def test_settings_are_read_without_the_server_s_libraries() -> None:
    program = "import sys, everwork.server.settings; print(sorted({'grpc', 'starlette', 'uvicorn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_documentation_lists_every_setting_with_its_default() -> None:
    assert list(REFERENCE) == [one.name for one in fields(Settings)]
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", entries(), re.DOTALL | re.MULTILINE))
    assert list(sections) == list(REFERENCE)
    for name, default in Settings().shown().items():
        shown = [f"`{one}`" for one in (default if isinstance(default, list) else [default])]
        expected = "not set" if default in (None, [], {}) else ", ".join(shown)
        assert f"- Default: {expected}\n" in sections[name], name


def test_the_page_about_settings_shows_them() -> None:
    assert "<!-- generated: settings -->" in PAGE.read_text("utf-8")
