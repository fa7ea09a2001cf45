"""Skills in sampling parameters become one spec for each prompt, whichever of `LLM`'s methods takes them.

vLLM's `LLM` is real but for its engine: what its methods would ask of one is what they return here.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from steerguard.blend import BlendError
from steerguard.integrations.vllm import SamplingParams, SteerGuardPlugin
from steerguard.integrations.vllm.offline import _take_skills

pytestmark = pytest.mark.slow

CALM, BRISK = "a" * 64, "b" * 64
CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture
def llm() -> Any:
    from vllm import LLM  # takes seconds

    class Asked(LLM):
        """An `LLM` whose methods return the sampling parameters that would go to its engine."""

        def __init__(self) -> None:
            self.model_config = SimpleNamespace(runner_type="generate")  # type: ignore[assignment]
            self.llm_engine = SimpleNamespace(engine_core=None)  # type: ignore[assignment]

    def params_of(_self: Any, **asked: Any) -> Any:
        return asked["params"]

    for method in ("_run_completion", "_add_completion_requests", "_run_chat", "_add_chat_requests"):
        assert hasattr(LLM, method)
        setattr(Asked, method, params_of)
    asked = Asked()
    plugin = SteerGuardPlugin(asked, admission=None)  # type: ignore[arg-type]
    plugin.skills = {"calm": CALM, "brisk": BRISK}
    _take_skills(asked, plugin)
    return asked


def skills(**extra_body: Any) -> Any:
    return SamplingParams(extra_body={f"steer_{key}": value for key, value in extra_body.items()})


def steered(params: Any) -> list[tuple[str, float, str] | None]:
    """Vector, strength and positions of each prompt; None where nothing was asked."""
    found = []
    for one in params if isinstance(params, list) else [params]:
        spec = (one.extra_args or {}).get("steerguard")
        found.append(tuple(spec["blend"][0].values()) if spec else None)
    return found


@pytest.mark.parametrize("method", ["generate", "enqueue"])
def test_every_method_that_takes_prompts_takes_skills(llm: Any, method: str) -> None:
    two = getattr(llm, method)(["one", "two"], skills(skill=["calm", "brisk"], alpha=[1.5, 0.5]))
    assert steered(two) == [(CALM, 1.5, "all"), (BRISK, 0.5, "all")]
    named = getattr(llm, method)(sampling_params=skills(skill="calm", positions="response"), prompts="one")
    assert steered(named) == [(CALM, 1.0, "response")]


@pytest.mark.parametrize("method", ["chat", "enqueue_chat"])
def test_a_conversation_is_one_prompt_however_many_messages_it_has(llm: Any, method: str) -> None:
    one = getattr(llm, method)(messages=CONVERSATION, sampling_params=skills(skill=["calm"]))
    assert steered(one) == [(CALM, 1.0, "all")]
    two = getattr(llm, method)([CONVERSATION, CONVERSATION[1:]], skills(skill=["calm", "brisk"]))
    assert steered(two) == [(CALM, 1.0, "all"), (BRISK, 1.0, "all")]
    with pytest.raises(BlendError, match=r"steer_skill: expected one value per prompt \(1\), found 2"):
        getattr(llm, method)(CONVERSATION, skills(skill=["calm", "brisk"]))


def test_a_prompt_of_token_ids_is_one_prompt(llm: Any) -> None:
    assert steered(llm.generate([5, 6, 7], skills(skill=["calm"]))) == [(CALM, 1.0, "all")]


def test_none_in_a_list_is_unsteered_whatever_goes_for_all(llm: Any) -> None:
    params = llm.generate(["one", "two"], skills(skill=["calm", None], alpha=2.0, positions="response"))
    assert steered(params) == [(CALM, 2.0, "response"), None]


def test_sampling_parameters_of_the_caller_stay_as_they_were(llm: Any) -> None:
    params = skills(skill=["calm", None])
    llm.generate(["one", "two"], params)
    assert params.extra_args == {"steer_skill": ["calm", None]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"steer_positions": "response"}, "steer_skill: expected a skill for steer_positions"),
        ({"steer_alpha": None}, "steer_skill: expected a skill for steer_alpha"),
        ({"steer_skill": "angry"}, "steer_skill: expected one of brisk, calm, found 'angry'"),
        ({"steer_skill": {"calm": 1.0}}, "steer_skill: expected one of brisk, calm, found {'calm': 1.0}"),
        ({"steer_skill": "calm", "steerguard": "{}"}, "steer_skill: expected either skills or steerguard, found both"),
    ],
)
def test_what_would_be_left_out_is_refused(llm: Any, asked: dict[str, Any], message: str) -> None:
    for params in (SamplingParams(extra_body=asked), [SamplingParams(extra_body=asked)]):
        with pytest.raises(BlendError) as refused:
            llm.generate(["one"], params)
        assert str(refused.value).startswith(message)


def test_a_list_of_parameters_has_one_skill_in_each(llm: Any) -> None:
    assert steered(llm.generate(["one", "two"], [skills(skill="calm"), skills()])) == [(CALM, 1.0, "all"), None]
    with pytest.raises(BlendError, match=r"found \['calm'\]"):
        llm.generate(["one"], [skills(skill=["calm"])])
