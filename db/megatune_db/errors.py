"""Errors of the database that a user can cause or mend: one line each that says what to do."""


class DatabaseError(Exception):
    """The database cannot be used as asked.

    The command prints the message without a traceback and exits with ``exit_code``.
    """

    exit_code = 2


class DatabaseMissingError(DatabaseError):
    """There is no file at that path, and none was to be created."""


class NotADatabaseError(DatabaseError):
    """The file is damaged, is not SQLite's, or belongs to another program."""


class OlderSchemaError(DatabaseError):
    """An older program wrote the database, and it has not been upgraded."""


class NewerSchemaError(DatabaseError):
    """A newer program wrote the database: this one could misread it."""


class ReadOnlyError(DatabaseError):
    """Something was to be written to a database that was opened, or that lies, read-only."""


class DatabaseLockedError(DatabaseError):
    """Another process writes to the database."""


class CoordinatorReplacedError(DatabaseError):
    """Another process has taken over the campaign."""


class DatabaseFullError(DatabaseError):
    """The disk, or the quota of the file, is full; everything committed before is kept."""


class NetworkFileSystemError(DatabaseError):
    """The file lies where the locks and the shared memory of SQLite do not work."""


class PlanStateError(DatabaseError):
    """The plan is in a state in which that cannot be done to it."""


class EmptyDatabaseError(NotADatabaseError):
    """There is a database without Megatune's tables yet, and none were to be made."""


class DatabaseUnreachableError(DatabaseError):
    """The server does not answer, or has ended the connection: the same may work later."""
