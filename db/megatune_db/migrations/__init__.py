"""Alembic's revisions of the schema; ``megatune_db.schema`` runs them."""
