"""Errors that a user can cause."""


class MegatuneError(Exception):
    """Bad input or a missing thing that the user can mend: one line that says what to do.

    The command prints the message without a traceback and exits with ``exit_code``.
    """

    exit_code = 2


class NothingMeasured(MegatuneError):
    """Nothing was measured, or nothing that was measured is worth shipping."""

    exit_code = 3


class Unknown(MegatuneError):
    """Another runtime's code is not as its adapter knows it: no config can be built, and none is to blame."""
