"""Why a job, file or batch is refused or fails, beside what the gateway itself refuses; in OpenAI's shape."""

from __future__ import annotations

from inference.gateway.errors import GatewayError, InvalidRequest


class UnknownObject(GatewayError):
    """No such job, file or batch, or another tenant's: the same answer, which holds nothing but what was asked."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"

    def __init__(self, noun: str, asked: str) -> None:
        super().__init__(f"The {noun} '{asked[:100]}' does not exist or you do not have access to it.", param="id")


class IdempotencyKeyReused(GatewayError):
    """The same Idempotency-Key came with another request."""

    status = 422
    type = "invalid_request_error"
    code = "idempotency_key_reused"

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key was used for another request.", param="Idempotency-Key")


class TooManyJobs(GatewayError):
    """The tenant has as many unfinished jobs as it may have."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_jobs"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} jobs are waiting or running; ask again when some are done.", retry_after_s=10)


class TooManyFiles(GatewayError):
    """The tenant stores as much as it may."""

    status = 413
    type = "invalid_request_error"
    code = "storage_full"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"All files together may take {limit_bytes} bytes; delete some first.")


class FileTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"'file' is larger than {limit_bytes} bytes.", param="file")


class UploadStalled(GatewayError):
    """The client sent nothing of the rest for a while."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"

    def __init__(self, silence_s: float) -> None:
        super().__init__(f"Nothing of the upload came for {silence_s:.0f} seconds.")


class TooManyWatchers(GatewayError):
    """This process follows as many jobs as it can."""

    status = 503
    type = "server_error"
    code = "too_many_streams"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("Too many jobs are being watched at the moment.", retry_after_s=retry_after_s)


class ForeignPage(GatewayError):
    """A browser's request from a page that is none of ours."""

    status = 403
    type = "invalid_request_error"
    code = "foreign_origin"

    def __init__(self) -> None:
        super().__init__("Pages of another origin can't use a session here: send an API key.")


class UnknownField(InvalidRequest):
    code = "unknown_parameter"

    def __init__(self, field: str) -> None:
        super().__init__(f"There is no field '{field[:100]}' here.", param=field[:100])


class JobFailed(Exception):
    """A job ends as failed. `message` is fit to be shown to its tenant."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message}
