"""How the parts are wired together: settings, URLs, ASGI and Celery. No product logic lives here."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
