"""Allowed scripts; ``test_banned_scripts.py`` has what both kinds share."""

from logitport.spec import AllowedScriptsSpec, limits

from tests.support.kinds import ScriptsTests


class TestRows(ScriptsTests):
    golden = AllowedScriptsSpec(("Latin", "Greek"))
    largest = (AllowedScriptsSpec(("Han",) * limits.MAX_SCRIPTS),)
