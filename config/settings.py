"""Settings, all of them from the environment, with defaults that run the whole product on one machine.

A deployment sets DATABASE_URL, REDIS_URL, SECRET_KEY, ALLOWED_HOSTS and HTTPS; a developer sets nothing.
"""

import os
import secrets
from pathlib import Path

import environ
import structlog

from deploy.data_dir import make_data_dir

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent

# Everything that SteerGuard writes: database, vectors, sockets, models.
DATA_DIR = make_data_dir()


def read_or_create_secret_key(path: Path) -> str:
    """The key in `path`; made there, readable by its owner only, by whichever process comes first."""
    if not path.exists():
        draft = path.with_name(f".{path.name}-{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(48))
        try:
            os.link(draft, path)  # unlike a rename, fails when another process was quicker
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()


DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="") or read_or_create_secret_key(DATA_DIR / "secret-key")

# --- Where the web server listens, and what people may call it
HOST = env.str("HOST", default="127.0.0.1")
PORT = env.int("PORT", default=8000)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]", HOST])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

# --- The engine that `make run` starts or is pointed at; engines are rows of inference.Engine after that
ENGINE_URL = env.str("ENGINE_URL", default="http://127.0.0.1:8100")
ENGINE_KEY = env.str("ENGINE_KEY", default="")
MODEL = env.str("MODEL", default=str(DATA_DIR / "models" / "SmolLM2-135M-Instruct"))

# What an answer may have where tokens are limited and neither request nor persona says: what is reserved must hold.
DEFAULT_ANSWER_TOKENS = env.int("DEFAULT_ANSWER_TOKENS", default=1024)

# --- The gateway, per process: requests at one engine, and how many more may wait for how long
MAX_IN_FLIGHT_PER_ENGINE = env.int("MAX_IN_FLIGHT_PER_ENGINE", default=256)
QUEUE_LENGTH = env.int("QUEUE_LENGTH", default=256)
QUEUE_TIMEOUT_S = env.float("QUEUE_TIMEOUT_S", default=10.0)
# On one engine, of vectors that no persona is made of but a request may name as a skill
MAX_SKILL_MIB = env.int("MAX_SKILL_MIB", default=1024)

# --- Adapters that tenants upload
MAX_LORA_RANK = env.int("MAX_LORA_RANK", default=16)  # of the engines
MAX_ADAPTER_MIB = env.int("MAX_ADAPTER_MIB", default=512)  # of one upload
MAX_TENANT_ADAPTERS_MIB = env.int("MAX_TENANT_ADAPTERS_MIB", default=10 * 1024)

# --- State
# Django keeps no connection open between requests: streams would each hold one for minutes.
DATABASES = {
    "default": {
        **env.db_url("DATABASE_URL", default=f"sqlite:///{DATA_DIR / 'db.sqlite3'}"),
        "CONN_MAX_AGE": 0,
    }
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # A transaction takes the write lock when it begins, so it waits for its turn instead of failing when
    # it first writes ("database is locked").
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,  # seconds
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.str("REDIS_URL", default=f"unix://{DATA_DIR / 'run' / 'valkey.sock'}")
CHANNEL_LAYERS = {
    # The pub/sub layer has no queue of its own to overflow: the core layer drops silently past 100 messages.
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "steerguard"},
    }
}

# --- Background work. Celery spells a unix socket's URL in its own way.
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=", 1)
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A page never hangs because Valkey is away: what could not be queued, the schedule below catches up on.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 2, "socket_timeout": 10}
CELERY_BEAT_SCHEDULE_FILENAME = str(DATA_DIR / "run" / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "reconcile-engines": {
        "task": "inference.tasks.reconcile_engines",
        "schedule": 5.0,  # seconds
        "options": {"expires": 5.0},  # ticks don't pile up while no worker runs
    },
    # Somebody may be waiting in front of a page for an engine that starts.
    "reconcile-starting-engines": {
        "task": "inference.tasks.reconcile_engines",
        "kwargs": {"only_starting": True},
        "schedule": 1.0,  # seconds
        "options": {"expires": 1.0},
    },
    "move-usage": {
        "task": "inference.tasks.move_usage",
        "schedule": 10.0,  # seconds
        "options": {"expires": 10.0},
    },
    "sweep-jobs": {
        "task": "jobs.tasks.sweep",
        "schedule": 5.0,  # seconds
        "options": {"expires": 5.0},
    },
    "delete-old-jobs": {
        "task": "jobs.tasks.delete_old_jobs",
        "schedule": 3600.0,  # seconds
        "options": {"expires": 3600.0},
    },
}

# --- Jobs. A worker asks for so many answers at once, and for so many of one tenant's, lines of batches included.
JOBS_CONCURRENCY = env.int("JOBS_CONCURRENCY", default=16)
JOBS_TENANT_CONCURRENCY = env.int("JOBS_TENANT_CONCURRENCY", default=8)
BATCH_CONCURRENCY = env.int("BATCH_CONCURRENCY", default=8)  # of one batch's lines
JOBS_LEASE_S = env.float("JOBS_LEASE_S", default=15.0)  # a worker that is silent for so long has died
JOBS_KEEP_DAYS = env.int("JOBS_KEEP_DAYS", default=30)  # after their end
JOBS_EVENTS_KEEP_S = env.int("JOBS_EVENTS_KEEP_S", default=24 * 3600)  # after a stream's last event
JOBS_MAX_WATCHERS = env.int("JOBS_MAX_WATCHERS", default=2000)  # of one gateway process
JOBS_MAX_UNFINISHED = env.int("JOBS_MAX_UNFINISHED", default=2000)  # waiting or running, per tenant
FILES_MAX_BYTES = env.int("FILES_MAX_BYTES", default=200 * 1024 * 1024)  # of one file
FILES_MAX_TENANT_BYTES = env.int("FILES_MAX_TENANT_BYTES", default=2 * 1024 * 1024 * 1024)  # of all of a tenant's
FILES_KEEP_DAYS = env.int("FILES_KEEP_DAYS", default=30)
BATCH_MAX_LINES = env.int("BATCH_MAX_LINES", default=50_000)
BATCH_MAX_LINE_BYTES = env.int("BATCH_MAX_LINE_BYTES", default=8 * 1024 * 1024)

# --- Application
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "personas",
    "inference",
    "jobs",
]
MIDDLEWARE = [
    "personas.middleware.RequestLogMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "personas.middleware.StaticFilesMiddleware",
    "personas.middleware.PageHeadersMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True

# There is no build step: WhiteNoise serves straight from the source folders.
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 60  # seconds

# --- The management API at /api/v1
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "personas.api.authentication.KeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": [],  # personas.api.views.ApiView decides
    "DEFAULT_RENDERER_CLASSES": ["personas.api.parsing.ApiJsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["personas.api.parsing.StrictJsonParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "personas.api.parsing.OneFormat",
    "DEFAULT_SCHEMA_CLASS": "personas.api.openapi.ApiSchema",
    "EXCEPTION_HANDLER": "personas.api.problems.answer_failure",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "SteerGuard",
    "DESCRIPTION": "The management API at `/api/v1` and the inference API at `/v1`.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "COMPONENT_SPLIT_REQUEST": True,
    "COMPONENT_SPLIT_PATCH": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "RoleEnum": "personas.models.Membership.Role",
        "ScopeEnum": "personas.models.ApiKey.Scope",
        "PositionsEnum": "personas.models.Positions",
        "EngineStatusEnum": "inference.models.Engine.Status",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "personas.api.openapi.finish_schema",
        "inference.api.openapi.add_inference_paths",
        "jobs.openapi.add_job_paths",
    ],
}

# --- People
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# --- Browser security. HTTPS=1 says that a proxy in front terminates TLS and sets X-Forwarded-Proto.
HTTPS = env.bool("HTTPS", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
if HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 3600 * 24 * 30
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024  # bytes

# --- Logs: one readable line per event, from structlog and from the standard library alike
_log_processors: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
]
structlog.configure(
    processors=[
        structlog.stdlib.filter_by_level,
        *_log_processors,
        structlog.processors.StackInfoRenderer(),
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": structlog.stdlib.ProcessorFormatter,
            "foreign_pre_chain": _log_processors,
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.dev.ConsoleRenderer(
                    colors=False,
                    pad_event_to=0,
                    pad_level=False,
                    # The default prints local variables, secrets included.
                    exception_formatter=structlog.dev.plain_traceback,
                ),
            ],
        },
        "request": {"format": "%(asctime)s [info] %(message)s", "datefmt": "%H:%M:%S"},
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line"},
        "requests": {"class": "logging.StreamHandler", "formatter": "request"},
    },
    "root": {"handlers": ["stderr"], "level": env.str("LOG_LEVEL", default="INFO")},
    "loggers": {
        # A line for each request of the gateway, which writes it whole: structlog's way takes longer than all the rest.
        "gateway.requests": {"handlers": ["requests"], "propagate": False},
        # Django's own handlers would print a line twice; its request lines carry query strings.
        "django": {"handlers": [], "propagate": True},
        "django.request": {"level": "ERROR"},
        "django.dispatch": {"level": "CRITICAL"},  # personas.changes logs its receivers' failures in a line
        "django.server": {"handlers": [], "level": "WARNING", "propagate": True},
        # Two lines for every reconcile tick; the reconciler logs when something changes.
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
    },
}
