"""Files of tenants, in OpenAI's shape: what batches read and write. Rows in the database, content under DATA_DIR."""
