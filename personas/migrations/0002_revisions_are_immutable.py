"""The database itself refuses to change a revision's content, whatever code (or shell) asks it to."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

CREATE = {
    "sqlite": [
        """
        CREATE TRIGGER personarevision_is_immutable
        BEFORE UPDATE OF persona_id, number, definition ON personas_personarevision
        BEGIN SELECT RAISE(ABORT, 'a persona revision is immutable'); END
        """
    ],
    "postgresql": [
        """
        CREATE FUNCTION personarevision_refuse_change() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'a persona revision is immutable' USING ERRCODE = 'check_violation'; END $$
        """,
        """
        CREATE TRIGGER personarevision_is_immutable
        BEFORE UPDATE OF persona_id, number, definition ON personas_personarevision
        FOR EACH ROW EXECUTE FUNCTION personarevision_refuse_change()
        """,
    ],
}
DROP = {
    "sqlite": ["DROP TRIGGER personarevision_is_immutable"],
    "postgresql": [
        "DROP TRIGGER personarevision_is_immutable ON personas_personarevision",
        "DROP FUNCTION personarevision_refuse_change()",
    ],
}


def create_trigger(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in CREATE[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


def drop_trigger(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in DROP[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("personas", "0001_initial")]
    operations = [migrations.RunPython(create_trigger, drop_trigger)]
