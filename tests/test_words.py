"""Words that must not come back: in every text that people read there is a plainer one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests import words

INSTEAD: Final[dict[str, str]] = {
    # Persons and answers -------------------------------------------------------------------------
    r"(some|no|any|every)body(?: else)?": "a user, no worker, the caller",
    r"who(m)?(so)?ever": "the caller, any user",
    r"askers?": "callers",
    r"told|tells? (more|of)|speaks? of": "reported, shown",
    r"said": "set, given, reported",
    r"(?:is|are|was|were) meant|meant": "intended; or name what is selected",
    # States and causes ---------------------------------------------------------------------------
    r"laps(?:e|es|ed|ing)": "expire, expired",
    r"hand(?:s|ed|ing)? (?:\w+ )?back": "release, released",
    r"the worker (?:was|is) lost": "lease expired",
    r"(?:sorts?|kinds?) of (?:errors?|failures?)": "error class, error group",
    r"for good": "permanently",
    r"(?:may|might|will not) pass": "transient, permanent",
    r"(?:is|are|was|were) gone": "no longer exists, has disconnected",
    r"(?:is|are|was|were) over(?=[.,;:)]|$| and\b| or\b)": "has ended, has expired",
    r"(?:came|comes?|arrived?) too late": "arrived after the lease expired",
    r"none lives?|lives|(?:that|which|still) live": "running; is stored in",
    r"begun": "started",
    r"defects?": "bug, internal error",
    r"power cuts?": "power failure",
    # Time and numbers ----------------------------------------------------------------------------
    r"at once": "immediately; concurrently; in one call",
    r"so many": "N, this many",
    r"(?:jobs|calls|requests|attempts|polls|completed|ended|events|messages) an? (?:second|minute|hour)": "per second",
    r"time-outs?": "timeout",
    r"time points?": "scheduled time",
    r"for ever": "forever",
    r"anew": "again; restart",
    # Terms ---------------------------------------------------------------------------------------
    r"(?<![\w./-])doors?": "API, interface, protocol",
    r"(?<!everwork )(?<![\w./-])upkeep": "maintenance",
    r"(?<!dead )(?<![\w./-])purg(?:e|es|ed|ing)": "delete",
    r"switch(?:es|ed|ing)? (?:\w+ )?(?:on|off)": "enable, disable",
    r"in force": "effective",
    r"as usual": "default",
    r"(?:by itself|by themselves)": "automatically; separately",
    r"of (?:its|their) own accord": "automatically",
    r"(?:make|makes|made|making) (?:an? )?(?:API )?keys?": "create a key",
    r"work(?:s|ed|ing)? (?:away|off)|work (?:it|them) off": "run",
    r"look(?:s|ed|ing)? after": "supervise, maintain",
    r"ask(?:s|ed|ing)? for (?:an?|its|this|that|the|such) types?": "poll for",
    r"put over": "merged into",
    r"(?:is|are|goes|went) away": "is unavailable",
    r"deeds?|wish(?:es|ed)?|stor(?:y|ies)": "the plain term",
    # Turns of phrase -----------------------------------------------------------------------------
    r"besides": "in addition",
    r"all the same": "still",
    r"need be": "if needed",
    r"lest|whereof|thereof|whilst|amongst": "so that ... not; among",
    r"nevertheless": "still",
    r"also (?:if|when|where)": "even if, even when",
    r"must (?:not )?be given(?: together)?": "is required, cannot be combined",
    r"(?:allowed|known) are": "allowed:",
    r"is no (?:field|setting|filter|option|version|database)": "unknown field, is not a",
    r"meanwhile(?=[.:;])": "in the meantime, during that time",
    r"take(?:s|n)? back(?: an?| the)? (?:expired )?leases?": "restore leases",
    # American spelling, except the state `cancelled` -----------------------------------------------
    r"(?:mis)?(?:behaviour|colour|favour|honour|neighbour|flavour)\w*": "-or",
    r"licen[c]e[sd]?|defence|offence": "license, defense",
    r"(?:un|de|re)?(?:serial|recogn|author|initial|normal|organ|synchron|optim|custom|priorit|summar|minim|maxim|standard"
    r"|final|util|real|apolog|general|special|categor|local|visual|central)is(?:e|es|ed|er|ers|ing|ation)": "-ize",
    r"analys(?:e|ed|es|ing)(?<!analyses)": "analyze",
    r"catalogues?|centre[sd]?|artefacts?|grey|judgement": "catalog, center, artifact, gray, judgment",
    r"(?:label|model|travel|signal)l(?:ed|ing)": "labeled, modeling",
}
"""What to write instead of what matches; only whole words match."""

ALLOWED: Final[tuple[tuple[str, str, str], ...]] = (
    ("proto/*/work.proto", "lapse", "a value of HistoryEntry.kind"),
    ("src/everwork/core/job.py", "lapse", "a value of HistoryEntry.kind"),
    ("src/everwork/engines/rules.py", "by itself", "a note in the history of older stores"),
)
"""Places that need such a word: file, word, reason. Names in backticks and code blocks are not read at all."""

BANNED: Final = re.compile(rf"\b(?:{'|'.join(f'(?:{pattern})' for pattern in INSTEAD)})\b")
EACH: Final = [(re.compile(rf"(?:{pattern})\b"), instead) for pattern, instead in INSTEAD.items()]


class Hit(NamedTuple):
    """A word that must not be there."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: write {self.instead}"


def found_in(text: words.Text, path: str = "") -> Iterator[Hit]:
    """The banned words of a text."""
    for found in BANNED.finditer(text.text.lower()):
        instead = next(instead for one, instead in EACH if one.match(found.string, found.start()))
        yield Hit(path, text.line, found[0], instead)


def is_allowed(hit: Hit) -> bool:
    """Whether a place needs the word."""
    return any(fnmatch(hit.path, path) and hit.word.lower() == word for path, word, _ in ALLOWED)


@cache
def hits() -> tuple[Hit, ...]:
    """Every banned word in the texts of the project."""
    return tuple(
        hit
        for path in words.files()
        for text in words.texts_of(path)
        for hit in found_in(text, str(path.relative_to(words.ROOT)))
        if not is_allowed(hit)
    )


def area_of(path: str) -> str:
    """The folder of a file."""
    return str(Path(path).parent)


AREAS: Final = sorted({area_of(str(path.relative_to(words.ROOT))) for path in words.files()})


@pytest.mark.parametrize("area", AREAS)
def test_a_word_with_a_plainer_one_is_not_used(area: str) -> None:
    table = [str(hit) for hit in hits() if area_of(hit.path) == area]
    assert not table, "\n".join(["", f"{len(table)} words with a plainer one in {area}:", *table])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("module.py", '"""What somebody reads."""\n'),
        ("module.py", 'raise ValueError(f"{name} is wrong and nobody knows")\n'),
        ("module.py", 'log.info(\n    "one "\n    "whoever"\n)\n'),
        ("page.html", "<p>Does\nanybody live here?</p>\n"),
        ("page.html", '<a title="for somebody else">x</a>\n'),
        ("page.html", '{{ "the lease lapsed" if job.is_late else "" }}\n'),
        ("live.js", 'const text = "reload at once";\n'),
        ("jobs.proto", "  // Jobs that nobody takes.\n"),
        ("guide.md", "# A page\n\nTwo doors, `doors` and a time-out.\n"),
        ("deploy/unit.service", "# The colour of the unit\n"),
        ("deploy/unit.service", "Description=What somebody runs\n"),
    ],
)
def test_a_planted_word_is_found(name: str, content: str) -> None:
    found = [hit for text in words.texts_of_source(Path(name), content) for hit in found_in(text, name)]
    assert found
    assert all(hit.line <= content.count("\n") for hit in found)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "module.py",
            'NAME = "lapsed"\nQUERY = "SELECT lapsed FROM job"\n"""Counts `lapsed` leases, cancelled jobs."""\n',
        ),
        ("page.html", '<p class="told at once">{# nobody #}<code>purge them</code> everwork dead purge</p>\n'),
        ("live.js", '// nobody\nconst state = "lapsed";\n'),
        ("jobs.proto", "message Door {}  // `door`\n"),
        ("guide.md", "```\nnobody\n```\n\n    at once\n\nRun `everwork upkeep` or everwork upkeep, /v1/dead/purge.\n"),
    ],
)
def test_names_and_code_are_not_texts(name: str, content: str) -> None:
    assert not [hit for text in words.texts_of_source(Path(name), content) for hit in found_in(text, name)]


@pytest.mark.parametrize("pattern", INSTEAD)
def test_no_replacement_is_banned_itself(pattern: str) -> None:
    assert not list(found_in(words.Text(1, INSTEAD[pattern])))


def test_every_allowed_place_still_needs_its_word() -> None:
    for path, word, reason in ALLOWED:
        places = [found for found in words.files() if fnmatch(str(found.relative_to(words.ROOT)), path)]
        texts = [text for place in places for text in words.texts_of(place)]
        assert any(hit.word == word for text in texts for hit in found_in(text)), f"{path}: {word} ({reason})"
