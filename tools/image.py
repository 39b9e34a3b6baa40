"""Builds the container image and tests it: server, workers, health checks.

    python -m tools.image [--base IMAGE] [--folder PATH]

It needs no Docker: buildah builds and runs the image in a chroot, as root on Debian or Ubuntu. Without --base,
debootstrap creates a Debian base image, whose name is passed to the Dockerfile as a build argument. During the build,
pip uses the package index from this machine's pip configuration, which is passed as a secret and not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tools.image_run import Container, ImageRun, TrialFailed

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGE: Final = "localhost/everwork:built"
PROGRAMS: Final = ("buildah", "debootstrap")
"""The required programs; Debian's packages have the same names."""
SUITE: Final = "trixie"
BASE_PACKAGES: Final = "python3,python3-venv,ca-certificates"
BUILD_SECONDS_MAX: Final = 1_800
USER: Final = "10001:10001"
CA_TARGET: Final = "/run/secrets/ca.pem"
PASSED_ON: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
"""The pip settings that also apply inside the build, where files of this machine cannot be reached."""


class Failed(Exception):
    """Why the image cannot be built or does not work."""


class Buildah:
    """buildah with its own storage, so that nothing else on this machine is changed."""

    def __init__(self, folder: Path) -> None:
        self._options = ["--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]

    def command(self, *words: str) -> list[str]:
        """The command line of a call."""
        return ["buildah", *self._options, *words]

    def __call__(self, *words: str) -> str:
        """The output of a call."""
        return run(self.command(*words))

    def has(self, image: str) -> bool:
        """Whether an image is in the storage."""
        inspected = subprocess.run(self.command("inspect", "--type", "image", image), capture_output=True, check=False)  # noqa: S603
        return inspected.returncode == 0

    def config(self, image: str) -> dict[str, Any]:
        """The configuration of an image, in Docker's format."""
        found: dict[str, Any] = json.loads(self("inspect", "--type", "image", image))["Docker"]["config"]
        return found

    def size(self, image: str) -> str:
        """The size of an image as readable text."""
        [found] = json.loads(self("images", "--json", image))
        return str(found["size"])


def run(command: Sequence[str], seconds: float = BUILD_SECONDS_MAX) -> str:
    """The output of a command; its last lines if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command[:8])} ...: did not end within {seconds:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n" + "\n".join(said[-25:]))
    return done.stdout.strip()


def main() -> None:
    """Build, run and report; exit code 1 with the reason if anything fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", help="a base image that buildah can pull (default: created by debootstrap)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "image", help="folder for images")
    arguments = parser.parse_args()
    try:
        _require_programs(has_base=arguments.base is not None)
        arguments.folder.mkdir(parents=True, exist_ok=True)
        buildah = Buildah(arguments.folder.resolve())
        base = arguments.base or _made_base(buildah, arguments.folder.resolve())
        _build(buildah, base)
        _check_config(buildah.config(IMAGE))
        _try_out(buildah)
        say(f"image {IMAGE}: {buildah.size(IMAGE)}, of which its base {base} is {buildah.size(base)}")
    except Failed as error:
        sys.stderr.write(f"image: {error}\n")
        sys.exit(1)


def say(text: str) -> None:
    """Print one line of progress, with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


def _require_programs(*, has_base: bool) -> None:
    if os.geteuid() != 0:
        raise Failed("must be run as root: a chroot needs it")
    wanted = [name for name in PROGRAMS if not (has_base and name == "debootstrap")]
    if any(shutil.which(name) is None for name in wanted) and shutil.which("apt-get"):
        say(f"installing {' and '.join(wanted)}")
        run(["apt-get", "-qq", "update"])
        run(["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *wanted])
    missing = [name for name in wanted if shutil.which(name) is None]
    if missing:
        raise Failed(f"needs {' and '.join(missing)}; on Debian and Ubuntu: apt-get install {' '.join(missing)}")


# Building ---------------------------------------------------------------------------------------------


def _made_base(buildah: Buildah, folder: Path) -> str:
    """A small Debian with Python, created once."""
    name = f"localhost/debian-python:{SUITE}"
    if buildah.has(name):
        say(f"using the existing base {name}")
        return name
    say(f"creating the base {name} with debootstrap (half a minute)")
    system = folder / "debian"
    shutil.rmtree(system, ignore_errors=True)
    try:
        run(["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", SUITE, str(system)])
        shutil.rmtree(system / "var/cache/apt/archives", ignore_errors=True)
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, str(system), "/")
        buildah("commit", "--quiet", "--rm", container, name)
    finally:
        shutil.rmtree(system, ignore_errors=True)
    return name


def _build(buildah: Buildah, base: str) -> None:
    say(f"building the Dockerfile on {base}")
    with tempfile.TemporaryDirectory() as secrets:
        buildah(
            *("build", "--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={base}"),
            *_pip_secrets(Path(secrets)),
            *("--tag", IMAGE, str(ROOT)),
        )


def _pip_secrets(folder: Path) -> list[str]:
    """The options that pass this machine's package index and trusted CA into the build."""
    settings: dict[str, str] = {}
    for line in run([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        name, _, value = line.partition("=")
        # Lines look like global.index-url='https://...' or :env:.cert='...'; the environment comes last, and wins.
        settings[name.rpartition(".")[2]] = value.strip("'")
    lines = [f"{name} = {_reachable(settings[name])}" for name in PASSED_ON if _reachable(settings.get(name, ""))]
    options: list[str] = []
    if (authority := Path(settings.get("cert", ""))).is_file():
        lines.append(f"cert = {CA_TARGET}")
        options += ["--secret", f"id=ca,src={authority}"]
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    return [*options, "--secret", f"id=pip,src={folder / 'pip.conf'}"]


def _reachable(value: str) -> str:
    """A setting without the URLs of files on this machine."""
    return " ".join(word for word in value.split() if not word.startswith("file:"))


def _check_config(config: dict[str, Any]) -> None:
    """Check the settings that orchestrators rely on."""
    expected = {
        "User": USER,
        "StopSignal": "SIGTERM",
        "Entrypoint": ["tini", "--", "everwork"],
        "Cmd": ["serve"],
    }
    for name, value in expected.items():
        if config.get(name) != value:
            raise Failed(f"the image's {name} is {config.get(name)!r}, not {value!r}")
    if config.get("Healthcheck", {}).get("Test") != ["CMD", "everwork", "probe"]:
        raise Failed(f"the image's health check is {config.get('Healthcheck')!r}")


# Running ----------------------------------------------------------------------------------------------


def _try_out(buildah: Buildah) -> None:
    """Run a server and workers of the image, and let them run a job."""
    with tempfile.TemporaryDirectory() as data:
        os.chown(data, *map(int, USER.split(":")))
        config = buildah.config(IMAGE)
        trial = ImageRun(config, Path(data), ROOT / "deploy/compose/workers", say)
        containers = [Container(buildah.command, buildah("from", IMAGE), trial) for _ in range(2)]
        try:
            trial.run(*containers)
        except TrialFailed as error:
            raise Failed(str(error)) from None
        finally:
            for container in containers:
                container.end()
                buildah("rm", container.name)


if __name__ == "__main__":
    main()
