"""A job's states: forward only, one worker at a time, one end."""

import pytest
import redis
from django.utils import timezone

from jobs import events, services
from jobs.errors import IdempotencyKeyReused
from jobs.models import Job
from personas.models import Tenant

pytestmark = pytest.mark.django_db(transaction=True)


def submit(tenant: Tenant, **more: object) -> Job:
    inputs = more.pop("inputs", {"prompt": "Hi\x00"})
    return services.submit(tenant=tenant.slug, key_prefix="", kind=Job.Kind.GENERATION, inputs=inputs, **more)[0]  # type: ignore[arg-type]


def lapse(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() - services.lease())


def told(valkey: redis.Redis, job: Job) -> list[str]:
    return [fields[b"type"].decode() for _, fields in valkey.xrange(events.stream_key(job.public_id))]  # type: ignore[union-attr,index]


def test_a_job_is_taken_once_and_ends_once(valkey: redis.Redis, acme: Tenant) -> None:
    job = submit(acme)
    taken = services.claim_next("generation", "acme")
    assert taken is not None and taken.pk == job.pk and taken.inputs == {"prompt": "Hi\x00"}
    assert services.claim_next("generation", "acme") is None
    assert services.finish(taken, Job.State.SUCCEEDED, result={"text": "Hello"})
    assert not services.finish(taken, Job.State.FAILED)
    assert services.cancel(job).state == Job.State.SUCCEEDED
    assert told(valkey, job) == ["queued", "succeeded"]


def test_a_worker_that_lost_its_job_cannot_finish_it(valkey: redis.Redis, acme: Tenant) -> None:
    submit(acme)
    first = services.claim_next("generation", "acme")
    assert first is not None
    lapse(first)
    second = services.claim_next("generation", "acme")
    assert second is not None and second.attempts == 2
    assert not services.finish(first, Job.State.SUCCEEDED)
    assert services.look_at_leases([second])[second.pk] == "held"
    assert services.look_at_leases([first])[first.pk] == "lost"
    assert services.finish(second, Job.State.SUCCEEDED)


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_is_asked_to_end(
    valkey: redis.Redis, acme: Tenant
) -> None:
    waiting = submit(acme)
    assert services.cancel(waiting).state == services.cancel(waiting).state == Job.State.CANCELLED
    assert told(valkey, waiting) == ["queued", "cancelled"]
    submit(acme)
    running = services.claim_next("generation", "acme")
    assert running is not None
    assert services.cancel(running).state == Job.State.RUNNING
    assert services.look_at_leases([running])[running.pk] == "cancelled"


def test_the_sweep_queues_what_never_reached_the_queue(valkey: redis.Redis, acme: Tenant) -> None:
    submit(acme)
    valkey.delete("generation")
    services.sweep()
    services.sweep()
    assert valkey.llen("generation") == 1


def test_what_waits_is_found_by_tenant_and_kind(valkey: redis.Redis, acme: Tenant, globex: Tenant) -> None:
    assert services.find_waiting() == []
    for tenant in (acme, acme, globex):
        submit(tenant)
    assert services.find_waiting() == [("acme", "generation"), ("globex", "generation")]
    while services.claim_next("generation", "acme"):
        pass
    assert services.find_waiting() == [("globex", "generation")]


def test_an_idempotency_key_gives_the_same_job(valkey: redis.Redis, acme: Tenant, globex: Tenant) -> None:
    job = submit(acme, idempotency_key="once")
    assert submit(acme, idempotency_key="once").pk == job.pk
    assert submit(globex, idempotency_key="once").pk != job.pk
    with pytest.raises(IdempotencyKeyReused):
        submit(acme, idempotency_key="once", inputs={"prompt": "Other"})


def test_a_job_that_keeps_ending_its_worker_fails(valkey: redis.Redis, acme: Tenant) -> None:
    job = submit(acme)
    for _ in range(services.MAX_ATTEMPTS):
        taken = services.claim_next("generation", "acme")
        assert taken is not None
        lapse(taken)
    assert services.claim_next("generation", "acme") is None
    job.refresh_from_db()
    assert (job.state, job.error["code"]) == (Job.State.FAILED, "worker_lost")


def test_attempts_that_get_something_done_or_are_given_back_are_not_counted(valkey: redis.Redis, acme: Tenant) -> None:
    submit(acme)
    for attempt in range(2 * services.MAX_ATTEMPTS):
        taken = services.claim_next("generation", "acme")
        assert taken is not None
        if attempt % 2:
            services.give_back(taken)
        else:
            assert services.note_progress(taken, done=attempt, total=100)
            lapse(taken)
    assert services.claim_next("generation", "acme") is not None


def test_only_leases_that_are_held_are_renewed(valkey: redis.Redis, acme: Tenant) -> None:
    for _ in range(2):
        submit(acme)
    lost, held = services.claim_next("generation", "acme"), services.claim_next("generation", "acme")
    assert lost is not None and held is not None
    Job.objects.filter(pk=lost.pk).update(attempts=2)
    for job in (lost, held):
        lapse(job)
    services.renew_leases([lost, held])
    running = Job.objects.filter(lease_until__gt=timezone.now())
    assert [job.pk for job in running] == [held.pk]
