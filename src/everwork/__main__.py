"""`python -m everwork` is the command line."""

from everwork.cli.main import main

if __name__ == "__main__":
    main()
