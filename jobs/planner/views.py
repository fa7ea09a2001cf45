"""The planner's page: a form whose inputs are the address, so that a plan is shared by its link."""

from itertools import groupby
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from jobs.planner import articles, published, report
from jobs.planner.calibration import BASE, LORA, STEERED, Calibration, Check, read_calibration
from jobs.planner.errors import PlanError
from jobs.planner.inputs import INPUTS, find_calibration, find_errors, read_question
from jobs.planner.plan import make_plan

CHECKED_FIGURES = ("tokens_per_s", "inter_token_ms", "ttft_ms")
MAX_TEXT = 100  # characters of one input that are shown again


@login_required
@require_safe
def planner(request: HttpRequest) -> HttpResponse:
    """The answers to what the query asks; with errors, which inputs are wrong."""
    given = {one.name: request.GET.get(one.name, "")[:MAX_TEXT].replace("\x00", "") for one in INPUTS}
    errors = find_errors(given)
    answers: dict[str, Any] = {}
    if not errors:
        question = read_question(given)
        plan = make_plan(question, find_calibration(question.shape))
        answers = {"plan": plan, "summary": report.summarize(plan), "sections": report.sections(plan)}
    own = _own_calibration()
    context = {
        **answers,
        "groups": [
            {"name": name, "fields": [_field(one.name, given, errors) for one in group]}
            for name, group in groupby(INPUTS, key=lambda one: one.group)
        ],
        "errors": [{"label": _label(name), "name": name, "text": _sentence(error)} for name, error in errors.items()],
        "checks": _checks(own) if own else [],
        "calibration": own,
        "published": (*published.PUBLISHED, *published.measured_rows(own)),
        "findings": articles.findings(),
    }
    return render(request, "jobs/planner.html", context)


def _field(name: str, given: dict[str, str], errors: dict[str, PlanError]) -> dict[str, Any]:
    one = next(one for one in INPUTS if one.name == name)
    return {
        "input": one,
        "value": given[name].strip() or one.default,
        "checked": given[name].strip().lower() not in ("", "0", "false", "no", "off"),
        "error": _sentence(errors[name]) if name in errors else "",
        "mode": {"int": "numeric", "float": "decimal"}.get(one.kind, ""),
    }


def _label(name: str) -> str:
    return next((one.label for one in INPUTS if one.name == name), name)


def _sentence(error: PlanError) -> str:
    return f"Expected {error.expected}, found {error.found}."


def _own_calibration() -> Calibration | None:
    try:
        return read_calibration()
    except PlanError:
        return None


def _checks(calibration: Calibration) -> list[dict[str, Any]]:
    """A row per batch size of base, steering and adapters: predicted, measured and the error of each figure."""
    rows = []
    for name in (BASE, STEERED, LORA):
        checks = calibration.checks(name)
        for batch in dict.fromkeys(check.batch for check in checks):
            of_batch: dict[str, Check] = {check.figure: check for check in checks if check.batch == batch}
            figures = [of_batch[figure] for figure in CHECKED_FIGURES]
            rows.append({"row": name, "batch": batch, "inside": figures[0].inside, "figures": figures})
    return rows
