"""What Everwork depends on: tested versions, licenses, a software bill of materials, known vulnerabilities.

    python -m tools.supply freeze     write the versions of this environment to constraints/newest.txt
    python -m tools.supply lowest     run the core tests with the lowest supported versions
    python -m tools.supply newest     run them with the newest versions on the package index
    python -m tools.supply sbom       write build/sbom/everwork.cdx.json (CycloneDX), and list the licenses
    python -m tools.supply audit      look up known vulnerabilities of the tested versions (needs the internet)

Further arguments of `lowest` and `newest` go to pytest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build" / "supply"
NEWEST: Final = ROOT / "constraints" / "newest.txt"
LOWEST: Final = ROOT / "constraints" / "lowest.txt"
SBOM: Final = ROOT / "build" / "sbom" / "everwork.cdx.json"
TOOLS: Final = ("cyclonedx-bom>=7,<8", "pip-audit>=2.10,<3")
NOT_FROZEN: Final = frozenset(["django", "django-tasks", "everwork", "pip", "setuptools"])
"""Packages whose versions differ between Pythons, such as Django, or come with the environment."""
CORE: Final = (
    *("tests/conformance", "tests/core", "tests/service", "tests/server", "tests/proto", "tests/cli", "tests/app"),
    *("tests/sqlite", "tests/postgres", "tests/redis", "tests/manager", "tests/spool", "tests/client"),
    *("tests/hostile", "tests/seeds"),
)
"""The tests that depend on users' package versions; those of browsers, docs and other languages do not."""
LICENSES: Final = frozenset(["0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "PSF-2.0"])
"""Licenses that allow use in closed products; dependencies with other licenses are refused."""
_SPELLINGS: Final[Mapping[str, str]] = {
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "mit license": "MIT",
    "mit": "MIT",
}
"""How packages name their license when they do not use an SPDX expression."""


@cache
def required() -> Mapping[str, Requirement]:
    """What pyproject.toml requires at run time, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [Requirement(one) for one in project["dependencies"]]
    return {canonicalize_name(one.name): one for one in wanted}


def pinned(file: Path) -> Mapping[str, str]:
    """The versions in a constraints file, by name."""
    lines = [line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines()]
    pairs = [line.partition("==") for line in lines if line]
    return {canonicalize_name(name): version for name, _, version in pairs}


def shipped() -> Mapping[str, Distribution]:
    """All packages that an installation of Everwork includes, direct and indirect."""
    found: dict[str, Distribution] = {}
    waiting = [(one, frozenset(one.extras)) for one in required().values()]
    while waiting:
        wanted, extras = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found and not extras:
            continue
        package = found[name] = distribution(name)
        for text in package.requires or ():
            further = Requirement(text)
            if _applies(further, extras) and canonicalize_name(further.name) not in found:
                waiting.append((further, frozenset(further.extras)))
    return dict(sorted(found.items()))


def _applies(wanted: Requirement, extras: frozenset[str]) -> bool:
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def license_of(package: Distribution) -> str:
    """The license as an SPDX expression, as far as the package declares it."""
    about = package.metadata
    for expression in about.get_all("License-Expression") or ():
        return str(expression)
    classified = [
        one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or () if one.startswith("License ::")
    ]
    told = [one for one in (*(about.get_all("License") or ()), *classified) if len(one) < 50]
    known = [_SPELLINGS.get(one.lower(), one) for one in told if one and one != "UNKNOWN"]
    return next((one for one in known if allowed(one)), next(iter(known), "unknown"))


def allowed(license: str) -> bool:
    """Whether software under these licenses may be shipped; all must be allowed, even if one could choose."""
    return all(one in LICENSES for one in re.findall(r"[\w.+-]+", license) if one not in ("AND", "OR"))


# Commands -----------------------------------------------------------------------------------------------


def freeze() -> None:
    """Write the versions with which the tests have just passed."""
    names = {canonicalize_name(one.name): one.version for one in distributions()}
    lines = [f"{name}=={version}" for name, version in sorted(names.items()) if name not in NOT_FROZEN]
    head = "# The versions that CI installs, written by `python -m tools.supply freeze` after the tests have passed."
    NEWEST.write_text("\n".join([head, *lines, ""]), "utf-8")


def run_tests(versions: str, arguments: list[str]) -> int:
    """Run the core tests in an environment with other versions."""
    python = _environment(versions)
    chosen = ["--constraint", str(LOWEST)] if versions == "lowest" else ["--upgrade", "--upgrade-strategy", "eager"]
    _run(python, "-m", "pip", "install", "--quiet", *chosen, "--editable", f"{ROOT}[dev]")
    shown = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)  # noqa: S603 - fixed words
    installed = {str(canonicalize_name(one["name"])): one["version"] for one in json.loads(shown.stdout)}
    sys.stdout.write("".join(f"{name} {installed[name]}\n" for name in required() if name in installed))
    sys.stdout.flush()
    tests = [*CORE, *arguments] if all(one.startswith("-") for one in arguments) else arguments
    return subprocess.run([python, "-m", "pytest", "-p", "no:cacheprovider", *tests], cwd=ROOT, check=False).returncode  # noqa: S603 - fixed words


def sbom() -> None:
    """List the packages of an installation, from an environment that has no others."""
    python = _environment("shipped")
    _run(python, "-m", "pip", "install", "--quiet", "--constraint", str(NEWEST), str(ROOT))
    _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip")
    SBOM.parent.mkdir(parents=True, exist_ok=True)
    form = ("--sv", "1.6", "--of", "JSON", "--output-reproducible", "--validate")
    pyproject = ("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library")
    _run(_tool("cyclonedx-py"), "environment", *form, *pyproject, "--output-file", str(SBOM), python)
    components = json.loads(SBOM.read_text("utf-8"))["components"]
    for name, package in shipped().items():
        sys.stdout.write(f"{name:26} {package.version:12} {license_of(package)}\n")
    sys.stdout.write(f"{len(components)} components: {SBOM.relative_to(ROOT)}\n")


def audit() -> int:
    """Look up the tested versions of all shipped packages in PyPI's vulnerability database."""
    BUILD.mkdir(parents=True, exist_ok=True)
    versions = pinned(NEWEST)
    wanted = BUILD / "shipped.txt"
    wanted.write_text("".join(f"{name}=={versions[name]}\n" for name in shipped() if name in versions), "utf-8")
    command = [_tool("pip-audit"), "--strict", "--no-deps", "--disable-pip", "--requirement", str(wanted)]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - fixed words


def _tool(name: str) -> str:
    python = _environment("tools")
    _run(python, "-m", "pip", "install", "--quiet", *TOOLS)
    return str(Path(python).with_name(name))


def _environment(name: str) -> str:
    folder = BUILD / name
    python = folder / "bin" / "python"
    if name == "shipped" or not python.exists():
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
    return str(python)


def _run(*command: str) -> None:
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main(arguments: list[str]) -> int:
    """Run one command."""
    match arguments:
        case ["freeze"]:
            freeze()
        case ["lowest" | "newest" as versions, *further]:
            return run_tests(versions, further)
        case ["sbom"]:
            sbom()
        case ["audit"]:
            return audit()
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
