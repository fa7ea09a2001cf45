"""Durable background work. Its periodic schedule is CELERY_BEAT_SCHEDULE in config/settings.py."""
