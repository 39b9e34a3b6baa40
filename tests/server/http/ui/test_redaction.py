"""What the dashboard does not show: which names are secret, and where else their values are found."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from everwork.codec.fields import TEXTS
from everwork.core.job import StoredJob
from everwork.core.states import State
from everwork.server.http.ui.redaction import (
    FILE_WORK_MAX,
    MASK,
    PAGE_WORK_MAX,
    SECRETS_MAX,
    SHOWN_CHARS_MAX,
    Masks,
    RedactedJob,
)
from everwork.server.settings import MASKED

MASKS = Masks(MASKED)
SECRET = "s3cr3t-value"


def a_job(**fields: Any) -> StoredJob:
    """A job with these values."""
    texts: dict[str, Any] = {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in fields.items()
    }
    return StoredJob(key=1, type="t", state=State.PENDING, **texts)


SECRET_NAMES = """
password passwords passwordConfirm password_confirmation password_hash PASSWORD2 pass_word userpassword dbpasswordhash
pässword passwd pwd DB_PWD passphrase secret secretKey secret_value clientSecrets aws_secret_access_key token tokenValue
authtoken refreshTokens2 access_token_expires jwt JWTToken bearer bearer-token apiKey APIKey X-API-Key api_key_2
accessKey access-key-id privateKeyPem encryption_key Authorization Proxy-Authorization credentials Set-Cookie cookies
"""
FULL_WIDTH = "".join(chr(ord(char) + 0xFEE0) for char in "password")
PLAIN_NAMES = (
    "secretary tokenizer key keys access pin monkey author api keyboard compass bear pwdx jwtx to ken 密码 username"
)


@pytest.mark.parametrize("name", [*SECRET_NAMES.split(), FULL_WIDTH])
def test_a_name_is_secret_wherever_the_words_of_a_listed_one_stand_together(name: str) -> None:
    assert MASKS.hides(name)
    assert MASKS.hides("long " * 1_000_000 + name)


def test_other_names_are_not_secret_and_names_of_any_script_can_be_listed() -> None:
    assert [name for name in PLAIN_NAMES.split() if MASKS.hides(name)] == []
    own = Masks(("pin", "密码", "ключ доступа"))
    assert [own.hides(name) for name in ("cardPin", "pin2", "spin", "pincode")] == [True, True, False, False]
    assert [own.hides(name) for name in ("密码", "КлючДоступа", "мой_ключ_доступа", "ключ")] == [
        True,
        True,
        True,
        False,
    ]
    assert not Masks(()).hides("password")


def test_secrets_are_hidden_in_pairs_in_texts_that_are_json_and_in_addresses() -> None:
    shown = MASKS.masked(
        {
            "env": [{"name": "DB_PASSWORD", "value": SECRET}, {"name": "HOST", "value": "h"}],
            "body": json.dumps({"to": "ann", "auth": json.dumps([{"token": SECRET}])}),
            "plain": '{"not": "secret"  }',
            "url": f"postgres://ann:{SECRET}@db/x, https://h:80/a@b, see http://ann:{SECRET}@h",
        }
    )
    assert SECRET not in json.dumps(shown)
    assert shown["env"] == [{"name": "DB_PASSWORD", "value": MASK}, {"name": "HOST", "value": "h"}]
    assert json.loads(json.loads(shown["body"])["auth"]) == [{"token": MASK}]
    assert shown["plain"] == '{"not": "secret"  }'
    assert shown["url"] == f"postgres://ann:{MASK}@db/x, https://h:80/a@b, see http://ann:{MASK}@h"


def test_a_secret_is_found_in_every_spelling() -> None:
    secret = "pä's/\"w d+é"
    redacted = RedactedJob(
        MASKS, a_job(variables={"password": secret, "jwt": 123456}, headers={"Authorization": "Bearer abc.def"})
    )
    told = [secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), quote(secret)]
    told += [quote(secret, safe=""), quote_plus(secret), "token abc.def is wrong", "'Bearer abc.def'", "123456"]
    for text in told:
        cleaned = redacted.redact(text)
        assert MASK in cleaned, text
        assert not any(part in cleaned for part in ("w d", "w%20d", "w+d", "abc", "123")), cleaned
    assert redacted.redact("at amqp://ann:unknown@host") == f"at amqp://ann:{MASK}@host"


def test_names_of_the_job_are_cleaned_too() -> None:
    names = dict.fromkeys(TEXTS, f"a {SECRET}")
    facts = RedactedJob(MASKS, a_job(variables={"db": f"redis://:{SECRET}@h"}, **names)).job
    assert {getattr(facts, name) for name in names} == {f"a {MASK}"}
    assert facts.priority == a_job().priority


def test_a_secret_across_the_end_of_what_is_shown_is_hidden() -> None:
    for size in range(SHOWN_CHARS_MAX - 60, SHOWN_CHARS_MAX):
        value = {"password": SECRET, "a": [SECRET] * 50, "text": "x" * (size - 900) + SECRET * 20}
        shown = RedactedJob(MASKS, a_job(variables=value)).json("variables")
        assert shown is not None
        assert SECRET[:4] not in shown[0]
        assert len(shown[0]) <= SHOWN_CHARS_MAX


def test_what_takes_long_to_look_through_is_not_shown_at_all() -> None:
    secrets = {"tokens": [f"token-{n:05}" for n in range(SECRETS_MAX - 1)]}
    few = RedactedJob(MASKS, a_job(variables={**secrets, "text": "x" * 100_000}))
    assert few.redact("token-00007 is wrong") == f"{MASK} is wrong"
    beginning = few.json("variables")
    assert beginning is not None
    assert (beginning[0][:15], beginning[1] > 0) == ('{\n  "tokens": "', True)
    assert few.redact("x" * (PAGE_WORK_MAX // 999 + 1)) == MASK
    assert (few.full_json("variables") or "").endswith('xxx"\n}')
    assert few.redact("x" * (FILE_WORK_MAX // 999 + 1), FILE_WORK_MAX) == MASK
    many = RedactedJob(MASKS, a_job(variables={"tokens": [f"token-{n:05}" for n in range(SECRETS_MAX + 1)]}))
    assert many.redact("anything") == MASK
