"""The one exception for input a person can put right.

`InputError` names the place and what would be right; the CLI prints it without a traceback and exits with 2. It is
never raised for a schedule that is well formed but illegal or too large: that is data (`compiler.diagnostic`).
"""


class InputError(Exception):
    """Bad input: where it is, what is wrong with it, and what would be right.

    Args:
        where: the file, key, flag or line at fault, as the user would name it.
        what: one sentence on what is wrong.
        right: what would be accepted, or how to find out.
    """

    def __init__(self, where: str, what: str, right: str = "") -> None:
        super().__init__(f"{where}: {what}" + (f"\n{right}" if right else ""))
        self.where = where
        self.what = what
        self.right = right


def nearest(word: str, known: "list[str] | tuple[str, ...]", count: int = 3) -> str:
    """'did you mean a, b?' for a misspelt `word`, or an empty string when nothing known is near."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=count, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else ""
