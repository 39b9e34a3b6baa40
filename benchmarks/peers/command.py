"""x"""


def main(arguments: list[str]) -> None:
    """x"""
