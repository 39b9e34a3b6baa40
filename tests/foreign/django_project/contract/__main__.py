"""Migrates both databases, then runs the cases: `python -m contract`."""

import os
import sys
import unittest

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "contract.settings"


def main() -> None:
    """Say how it went by the exit code."""
    django.setup()
    from django.core.management import call_command  # noqa: PLC0415 - after the setup

    for database in ("default", "lite"):
        call_command("migrate", database=database, verbosity=0)
    names = ["contract.settings_cases", "contract.backend_cases", "contract.worker_cases"]
    sys.stderr.write(f"Django {django.get_version()}, Python {sys.version.split()[0]}\n")
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:] or names)
    outcome = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not outcome.wasSuccessful())


if __name__ == "__main__":
    main()
