"""The part of the management API at `/api/v1` that is about engines and usage. See personas/api."""
