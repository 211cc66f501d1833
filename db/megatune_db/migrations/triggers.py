"""Triggers that refuse what would take something away, whichever program tries: the same on both engines."""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

_FUNCTION = """
CREATE OR REPLACE FUNCTION megatune_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = TG_ARGV[0];
END $$
"""


def refuse_deleting(table: str, why: str) -> None:
    """Keep every row of the table."""
    _refuse(table, "delete", "DELETE", why)
    if _on_postgres():
        op.execute(
            f"CREATE TRIGGER tr_{table}_truncate BEFORE TRUNCATE ON {table}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION megatune_refuse('{table}: {why}')"
        )


def refuse_updating(table: str, why: str, columns: Sequence[str] = (), *, name: str = "update") -> None:
    """Keep rows as they are, or some columns of them.

    :param name: tells two triggers of one table apart.
    """
    _refuse(table, name, f"UPDATE OF {', '.join(columns)}" if columns else "UPDATE", why)


def refuse_replacing(table: str, *keys: tuple[Sequence[str], str]) -> None:
    """On SQLite, keep rows from ``INSERT OR REPLACE`` and ``UPDATE OR REPLACE``, which delete and fire no trigger of
    deletions. PostgreSQL has nothing of the kind.

    :param keys: columns that are unique beside the id, where the condition holds, if one is given. What is put in
        again with the same ones is ignored, since whoever asks for that (``ON CONFLICT DO NOTHING``) cannot be told
        from whoever replaces.
    """
    if _on_postgres():
        return
    why = f"{table}: what was recorded is unique, and never replaced"
    _guard(table, "replace_id", "INSERT", "id = NEW.id", f"ABORT, '{why}'")
    for number, (columns, condition) in enumerate(keys):
        same = " AND ".join([*filter(None, [condition]), *(f"{column} = NEW.{column}" for column in columns)])
        when = f"NEW.{condition} AND " if condition else ""
        _guard(table, f"replace_{number}", "INSERT", same, "IGNORE", when)
        updated = [*columns, *filter(None, [condition.partition(" ")[0]])]
        _guard(
            table,
            f"replace_{number}_update",
            f"UPDATE OF {', '.join(updated)}",
            f"{same} AND id <> NEW.id",
            f"ABORT, '{why}'",
            when,
        )


def _guard(table: str, name: str, what: str, same: str, then: str, when: str = "") -> None:
    op.execute(
        f"CREATE TRIGGER tr_{table}_{name} BEFORE {what} ON {table}"
        f" WHEN {when}EXISTS (SELECT 1 FROM {table} WHERE {same}) BEGIN SELECT RAISE({then}); END"
    )


def _refuse(table: str, name: str, what: str, why: str) -> None:
    begins = f"CREATE TRIGGER tr_{table}_{name} BEFORE {what} ON {table}"
    if _on_postgres():
        op.execute(_FUNCTION)
        op.execute(f"{begins} FOR EACH ROW EXECUTE FUNCTION megatune_refuse('{table}: {why}')")
    else:
        op.execute(f"{begins} BEGIN SELECT RAISE(ABORT, '{table}: {why}'); END")


def _on_postgres() -> bool:
    return op.get_bind().dialect.name == "postgresql"
