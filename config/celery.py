"""The Celery application: `celery -A config worker --beat` runs the background work and its schedule."""

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("steerguard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


def keep_django_logging(**_kwargs: object) -> None:
    """Celery leaves logging alone when its signal has a receiver, so settings.LOGGING holds there too."""


setup_logging.connect(keep_django_logging)
