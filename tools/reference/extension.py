"""The Sphinx extension of the site: puts generated Markdown in the place of markers, and links terms and public names.

The text of a page is Markdown; a comment on a line of its own requests a generated part:

    <!-- generated: settings -->

Nothing generated is written to the source tree: it can neither be stale nor be edited by mistake, and on a code forge
the page and links to it still work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from tools import cli_reference
from tools.reference import dependencies, errors, grpc, limits, metrics, python, reliability, rest, settings, soak
from tools.reference.anchors import slug
from tools.reference.markdown import for_site

MARKER: Final = re.compile(r"^<!-- generated: (\w+)((?: [\w.]+)*) -->$", re.MULTILINE)
GLOSSARY: Final = "reference/glossary"
PARTS: Final[Mapping[str, Callable[..., str]]] = {
    "commands": cli_reference.reference,
    "dependencies": dependencies.direct,
    "errors": errors.table,
    "grpc": grpc.services,
    "indirect": dependencies.indirect,
    "limits": limits.tables,
    "metrics": metrics.families,
    "python": python.names,
    "reliability": reliability.results,
    "rest": rest.operations,
    "schemas": rest.schemas,
    "settings": settings.entries,
    "soak": soak.results,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", _generate)
    app.connect("env-get-outdated", _generated_pages)
    app.connect("doctree-read", _anchor_terms)
    app.connect("doctree-read", _punctuate)
    app.connect("missing-reference", _public_name)
    app.connect("html-page-context", _for_everyone)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def with_generated(text: str, page: str) -> str:
    """A page with the generated parts that it requests."""

    def part(found: re.Match[str]) -> str:
        name, arguments = found[1], found[2].split()
        if name not in PARTS:
            raise ExtensionError(f"{page}: nothing generates {name!r}; known parts: {', '.join(PARTS)}")
        return PARTS[name](*arguments)

    return MARKER.sub(part, text)


def _generate(_app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = with_generated(for_site(source[0]), page)


def _generated_pages(
    _app: Sphinx, env: BuildEnvironment, _added: set[str], _changed: set[str], _removed: set[str]
) -> list[str]:
    """Read these pages again in every build: the code that they are generated from may have changed."""
    return [page for page in env.found_docs if MARKER.search(env.doc2path(page).read_text("utf-8"))]


def _anchor_terms(app: Sphinx, doctree: nodes.document) -> None:
    """Make every term of the glossary linkable: `glossary.md#dead-letter`."""
    if app.env.docname != GLOSSARY:
        return
    anchors = app.env.metadata[GLOSSARY].setdefault("myst_slugs", {})
    for term in doctree.findall(nodes.strong):
        anchor = slug(term.astext())
        if anchor not in anchors:
            term["ids"].append(anchor)
            anchors[anchor] = (term.line or 0, anchor, term.astext())


def _punctuate(_app: Sphinx, doctree: nodes.document) -> None:
    """Arguments are listed as `url: The store`; Sphinx puts two hyphens between them."""
    for text in [one for one in doctree.findall(nodes.Text) if one == " -- "]:
        text.parent.replace(text, nodes.Text(": "))


def _public_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement) -> nodes.Node | None:
    """A type in a signature is known by the module that defines it; it is documented under its public name."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("everwork."):
        return None
    public = _public().get(target)
    if public is None:
        return shown  # Not public: shown by name, without its own page.
    return env.domains.python_domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, shown)


def _for_everyone(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Make scrolling code reachable by keyboard, and do not mark up the lines of a signature as definitions."""
    if "body" in context:
        lines = _SIGNATURE.sub(lambda found: _as_lines(found[0]), context["body"])
        context["body"] = lines.replace("<pre>", '<pre tabindex="0">')


_SIGNATURE: Final = re.compile(r'<dt class="sig .*?</dt>', re.DOTALL)


def _as_lines(signature: str) -> str:
    for tag, name in (("dl", "sig-lines"), ("dd", "sig-line")):
        signature = signature.replace(f"<{tag}>", f'<span class="{name}">').replace(f"</{tag}>", "</span>")
    return signature


@cache
def _public() -> Mapping[str, str]:
    return {python.defined_as(name): name for name in python.public_names()}
