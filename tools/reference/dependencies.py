"""What Everwork depends on: supported and tested versions, and licenses."""

from __future__ import annotations

from tools.supply import LOWEST, NEWEST, license_of, pinned, required, shipped


def direct() -> str:
    """What pyproject.toml requires, with the versions that were tested."""
    lowest, newest, packages = pinned(LOWEST), pinned(NEWEST), shipped()
    rows = []
    for name, wanted in required().items():
        tested = " and ".join(dict.fromkeys([lowest.get(name, newest[name]), newest[name]]))
        range_ = f"`{wanted.specifier}`" if wanted.specifier else "any"
        rows.append(f"| {name} | {range_} | {tested} | {license_of(packages[name])} |\n")
    return "".join(["| package | supported | tested | license |\n|---|---|---|---|\n", *rows])


def indirect() -> str:
    """The packages that those depend on."""
    newest, packages = pinned(NEWEST), shipped()
    rows = [
        f"| {name} | {newest.get(name, package.version)} | {license_of(package)} |\n"
        for name, package in packages.items()
        if name not in required()
    ]
    return "".join(["| package | tested | license |\n|---|---|---|\n", *rows])
