"""Run the migrations on the connection that the database passes."""

from alembic import context

from icefloe.service.database.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
)
context.run_migrations()
