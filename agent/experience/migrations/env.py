"""Alembic's entry: runs the migrations in the transaction of the connection it is handed."""

from alembic import context

from agent.experience.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
