"""Texts that a model writes all the time, for tests in which it may not."""

from logitport.spec import BannedTextSpec

BANNED = BannedTextSpec(("e", " th", "ing"), ignore_case=True)


def is_free_of_banned(text: str) -> bool:
    """Whether an output holds none of the texts of ``BANNED``, and is not empty."""
    return bool(text) and not any(each in text.lower() for each in BANNED.texts)
