"""``allowed_scripts``: the output has characters of some scripts only."""

from .banned_scripts import ScriptsSpec


class AllowedScriptsSpec(ScriptsSpec, frozen=True, tag="allowed_scripts"):
    r"""Every character of the output belongs to one of the Unicode ``scripts``, or is shared.

    Digits, spaces, punctuation, emoji, combining marks and other characters that many scripts use
    (``Common`` and ``Inherited``) are always allowed, and so are special tokens, EOS among them.
    Code points that are unassigned or for private use are of no script, and banned. Several specs
    of this kind on a request allow what all of them do.

    All else is as for ``BannedScriptsSpec``.

    ``AllowedScriptsSpec(("Latin", "Greek"))`` makes the model write in Latin and Greek letters.

    Examples:
        >>> from logitport.adapters.reference.kinds.banned_scripts import completing
        >>> tokens = b"Hi", b"7!", "\u0416".encode()
        >>> completing([AllowedScriptsSpec(("Latin",))], tokens, output=())
        {2}

    Args:
        scripts: 1 to ``MAX_SCRIPTS`` names of scripts; order and repetition mean nothing.

    Raises:
        SpecError: if a field is out of bounds.
    """
