"""Renewed TLS files: loaded without a restart, and only if certificate and key match."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from everwork.server.certificates import CHECK_SECONDS, CertificateFiles, Certificates


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += CHECK_SECONDS
        return self.now


def write(folder: Path, *, key: bool = True, certificate: bool = True) -> tuple[Path, Path]:
    """Put a new certificate and key into the folder, or only one of them."""
    leaf = trustme.CA().issue_cert("localhost")
    if certificate:
        leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    if key:
        leaf.private_key_pem.write_to_path(folder / "key.pem")
    return folder / "cert.pem", folder / "key.pem"


def test_a_new_pair_is_read_once(tmp_path: Path) -> None:
    files = CertificateFiles(*write(tmp_path), clock=Clock())
    before = files.current
    assert files.changed() is None
    certificate, key = write(tmp_path)
    found = files.changed()
    assert found is not None
    assert found.certificate == certificate.read_bytes() != before.certificate
    assert found.key == key.read_bytes()
    assert files.changed() is None


def test_half_a_pair_changes_nothing_until_the_other_half_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = CertificateFiles(*write(tmp_path), clock=Clock())
    leaf = trustme.CA().issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    assert files.changed() is None
    assert "new TLS files cannot be used" in caplog.text
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    assert files.changed() is not None


def test_files_that_disappear_change_nothing(tmp_path: Path) -> None:
    files = CertificateFiles(*write(tmp_path), clock=Clock())
    (tmp_path / "key.pem").unlink()
    assert files.changed() is None
    assert files.current.key.startswith(b"-----BEGIN")


def test_the_authority_of_clients_is_renewed_too(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(authority)
    files = CertificateFiles(*write(tmp_path), authority, clock=Clock())
    trustme.CA().cert_pem.write_to_path(authority)
    found = files.changed()
    assert found is not None
    assert found.authority == authority.read_bytes()
    authority.write_text("nothing")
    assert files.changed() is None


def test_files_that_are_replaced_while_they_are_first_read_are_used_for_connections_too(tmp_path: Path) -> None:
    files = CertificateFiles(*write(tmp_path), clock=Clock())
    before = files.latest_context()
    certificate, key = write(tmp_path)
    files.current = Certificates(certificate.read_bytes(), key.read_bytes(), None)
    assert files.changed() is None
    assert files.latest_context() is not before
