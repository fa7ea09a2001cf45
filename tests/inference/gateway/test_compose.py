"""What the engine is asked, given what the client asked and what the persona says."""

import json
from typing import Any

import pytest

from inference.gateway.compose import (
    PLAIN_MODEL,
    Kind,
    compose,
    compose_parts,
    count_prompts,
    derive_cache_salt,
    wants_stream,
    wants_usage,
)
from inference.gateway.errors import FieldRefused, InvalidRequest, LockedParameter, Unsupported
from inference.gateway.skills import AskedSkill, asked_skills
from personas.definition import LOCKABLE, BlendComponent, Definition, Sampling

CALM = "a" * 64
BRIEF = "b" * 64
HELLO = [{"role": "user", "content": "Hello"}]


def ask(body: dict[str, Any], definition: Definition = PLAIN_MODEL, kind: Kind = "chat", **more: Any) -> dict[str, Any]:
    return compose(
        {"model": "acme/support", **body},
        kind=kind,
        definition=definition,
        base_model="base",
        cache_salt="salt",
        **more,
    )


def steering_of(body: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(body["vllm_xargs"]["steerguard"])
    return spec


class TestThePlainModel:
    def test_is_asked_what_the_client_asked_under_its_own_name_and_with_the_tenants_salt(self) -> None:
        assert ask({"messages": HELLO, "tools": [{"type": "function"}], "seed": 7}) == {
            "model": "base",
            "messages": HELLO,
            "tools": [{"type": "function"}],
            "seed": 7,
            "cache_salt": "salt",
        }

    def test_gets_no_fields_that_are_null(self) -> None:
        assert "temperature" not in ask({"messages": HELLO, "temperature": None})

    def test_leaves_the_clients_body_as_it_was(self) -> None:
        body = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": False}}
        before = json.dumps(body)
        ask(body, Definition(system_prompt="Be kind."))
        assert json.dumps(body) == before


class TestTheSystemPrompt:
    persona = Definition(system_prompt="Be kind.")

    def test_comes_first(self) -> None:
        assert ask({"messages": HELLO}, self.persona)["messages"] == [
            {"role": "system", "content": "Be kind."},
            *HELLO,
        ]

    @pytest.mark.parametrize("role", ["system", "developer"])
    def test_goes_in_front_of_the_clients_own_so_that_there_is_one(self, role: str) -> None:
        own = {"role": role, "content": "Answer in French."}
        assert ask({"messages": [own, *HELLO]}, self.persona)["messages"] == [
            {"role": role, "content": "Be kind.\n\nAnswer in French."},
            *HELLO,
        ]

    def test_goes_in_front_of_a_system_message_in_parts(self) -> None:
        own = {"role": "system", "content": [{"type": "text", "text": "Answer in French."}]}
        first = ask({"messages": [own, *HELLO]}, self.persona)["messages"][0]
        assert "".join(part["text"] for part in first["content"]) == "Be kind.\n\nAnswer in French."

    def test_goes_before_each_prompt_of_a_plain_completion(self) -> None:
        assert ask({"prompt": "Once"}, self.persona, "completion")["prompt"] == "Be kind.\n\nOnce"
        assert ask({"prompt": ["One", "Two"]}, self.persona, "completion")["prompt"] == [
            "Be kind.\n\nOne",
            "Be kind.\n\nTwo",
        ]

    def test_is_not_lost_where_the_prompt_is_tokens(self) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            ask({"prompt": [1, 2, 3]}, self.persona, "completion")
        assert refusal.value.param == "prompt"


class TestDefaults:
    persona = Definition(
        sampling=Sampling(temperature=0.2, max_tokens=64, stop=("END",)),
        output_format={"type": "json_object"},
    )

    def test_fill_in_what_the_client_left_out(self) -> None:
        body = ask({"messages": HELLO}, self.persona)
        assert (body["temperature"], body["max_tokens"], body["stop"]) == (0.2, 64, ["END"])
        assert body["response_format"] == {"type": "json_object"}

    def test_give_way_to_what_the_client_said(self) -> None:
        body = ask(
            {"messages": HELLO, "temperature": 0, "max_tokens": 5, "response_format": {"type": "text"}}, self.persona
        )
        assert (body["temperature"], body["max_tokens"]) == (0, 5)
        assert body["response_format"] == {"type": "text"}

    def test_fill_in_where_the_client_said_null(self) -> None:
        assert ask({"messages": HELLO, "temperature": None}, self.persona)["temperature"] == 0.2

    def test_know_both_names_of_the_token_limit(self) -> None:
        assert "max_tokens" not in ask({"messages": HELLO, "max_completion_tokens": 5}, self.persona)


class TestTheBlend:
    persona = Definition(
        blend=(
            BlendComponent(vector=CALM, skill="calm", alpha=1.5),
            BlendComponent(vector=BRIEF, skill="brief", alpha=-0.5, positions="response", layers=(10, 14)),
        ),
        max_dose=0.8,
    )

    def test_is_named_by_digest_and_never_by_anything_a_server_could_open(self) -> None:
        assert steering_of(ask({"messages": HELLO}, self.persona)) == {
            "blend": [
                {"vector": CALM, "alpha": 1.5, "positions": "all"},
                {"vector": BRIEF, "alpha": -0.5, "positions": "response", "layers": [10, 14]},
            ],
            "max_dose": 0.8,
        }

    def test_is_multiplied_by_the_strength(self) -> None:
        blend = steering_of(ask({"messages": HELLO}, self.persona, strength=2.0))["blend"]
        assert [component["alpha"] for component in blend] == [3.0, -1.0]

    def test_is_gone_at_strength_zero(self) -> None:
        assert "vllm_xargs" not in ask({"messages": HELLO}, self.persona, strength=0.0)

    def test_gets_a_skill_added_at_the_strength_that_was_asked(self) -> None:
        skill = BlendComponent(vector="c" * 64, skill="pirate", alpha=1.25)
        blend = steering_of(ask({"messages": HELLO}, self.persona, skill=skill, strength=0.5))["blend"]
        assert [(component["vector"], component["alpha"]) for component in blend] == [
            (CALM, 0.75),
            (BRIEF, -0.25),
            ("c" * 64, 1.25),
        ]

    def test_leaves_the_clients_other_plugin_arguments_alone(self) -> None:
        body = ask({"messages": HELLO, "vllm_xargs": {"other": 1}}, self.persona)
        assert body["vllm_xargs"]["other"] == 1
        assert steering_of(body)["blend"]


class TestStreams:
    def test_always_report_usage_to_the_gateway(self) -> None:
        asked = {"messages": HELLO, "stream": True, "stream_options": {"continuous_usage_stats": True}}
        assert ask(asked)["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}

    def test_report_usage_to_the_client_only_where_it_asked(self) -> None:
        assert not wants_usage({"stream": True})
        assert not wants_usage({"stream": True, "stream_options": None})
        assert wants_usage({"stream": True, "stream_options": {"include_usage": True}})

    @pytest.mark.parametrize("stream", ["true", 1, "no"])
    def test_are_asked_for_with_true_or_false(self, stream: object) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            wants_stream({"stream": stream})
        assert refusal.value.param == "stream"


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"cache_salt": "guessed"}, "cache_salt"),
            ({"request_id": "someone-elses"}, "request_id"),
            ({"session_id": "someone-elses"}, "session_id"),
            ({"priority": -100}, "priority"),
            ({"kv_transfer_params": {}}, "kv_transfer_params"),
            ({"vllm_xargs": {"steerguard": '{"blend": []}'}}, "vllm_xargs.steerguard"),
            ({"vllm_xargs": {"steerguard.plan": []}}, "vllm_xargs.steerguard.plan"),
            ({"vllm_xargs": {"session_id": "someone-elses"}}, "vllm_xargs.session_id"),
        ],
    )
    def test_keep_what_crosses_tenants_in_the_gateways_hand(self, body: dict[str, Any], field: str) -> None:
        with pytest.raises(FieldRefused) as refusal:
            ask({"messages": HELLO, **body})
        assert refusal.value.param == field

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "messages"),
            ({"messages": "Hello"}, "messages"),
            ({"messages": []}, "messages"),
            ({"messages": ["Hello"]}, "messages[0]"),
            ({"messages": HELLO, "vllm_xargs": "steerguard"}, "vllm_xargs"),
            ({"messages": HELLO, "stream": True, "stream_options": 1}, "stream_options"),
        ],
    )
    def test_name_the_field(self, body: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            ask(body)
        assert refusal.value.param == field


class TestTheArticlesFields:
    def test_name_a_skill_and_its_strength(self) -> None:
        assert asked_skills({"steer_skill": "pirate", "steer_alpha": 2}, 1) == [AskedSkill("pirate", 2.0)]
        assert asked_skills({"steer_skill": "pirate"}, 2) == [AskedSkill("pirate", None)] * 2
        assert asked_skills({}, 2) == [None, None]

    def test_are_aligned_with_the_prompts_where_they_are_lists(self) -> None:
        body = {"steer_skill": ["pirate", None, "calm"], "steer_alpha": [2, 1, None]}
        assert asked_skills(body, 3) == [AskedSkill("pirate", 2.0), None, AskedSkill("calm", None)]
        assert asked_skills({"steer_skill": ["pirate", "calm"], "steer_alpha": 3}, 2) == [
            AskedSkill("pirate", 3.0),
            AskedSkill("calm", 3.0),
        ]
        assert asked_skills({"steer_skill": ["pirate"], "steer_alpha": [3]}, 1) == [AskedSkill("pirate", 3.0)]

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"steer_skill": ["pirate"]}, "steer_skill"),
            ({"steer_skill": ["a", "b", "c"], "steer_alpha": [1, 2]}, "steer_skill"),
            ({"steer_skill": [], "steer_alpha": 1}, "steer_skill"),
            ({"steer_skill": "pirate", "steer_alpha": [1.0]}, "steer_alpha"),
        ],
    )
    def test_that_are_lists_of_another_length_are_refused_with_both(self, body: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            asked_skills(body, 2)
        assert refusal.value.param == field
        assert f"{len(body[field])} element" in refusal.value.message
        assert "2 prompts" in refusal.value.message

    def test_are_not_passed_on(self) -> None:
        body = ask({"messages": HELLO, "steer_skill": "pirate", "steer_alpha": 2})
        assert not {"steer_skill", "steer_alpha"} & body.keys()

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"steer_skill": 7}, "steer_skill"),
            ({"steer_skill": [7]}, "steer_skill"),
            ({"steer_alpha": 1.0}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": "1"}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": True}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": 1e300}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": 10**400}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": float("nan")}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": ["1"]}, "steer_alpha"),
        ],
    )
    def test_are_checked(self, body: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            asked_skills(body, 1)
        assert refusal.value.param == field


class TestPromptsWithSkillsOfTheirOwn:
    pirate = BlendComponent(vector=CALM, skill="pirate", alpha=2.0)
    calm = BlendComponent(vector=BRIEF, skill="calm")

    def parts(self, skills: list[BlendComponent | None], definition: Definition = PLAIN_MODEL, **body: Any) -> Any:
        prompts = [f"prompt {index}" for index in range(len(skills))]
        return compose_parts(
            {"model": "m", "prompt": prompts, **body},
            kind="completion",
            definition=definition,
            base_model="base",
            cache_salt="salt",
            skills=skills,
        )

    def test_make_one_request_for_each_different_steering(self) -> None:
        first, second, third = self.parts([self.pirate, self.calm, None, self.pirate], n=2)
        assert (first.prompts, first.body["prompt"]) == ([0, 3], ["prompt 0", "prompt 3"])
        assert (second.prompts, second.body["prompt"]) == ([1], ["prompt 1"])
        assert (third.prompts, third.body["prompt"]) == ([2], ["prompt 2"])
        assert steering_of(first.body)["blend"][0]["alpha"] == 2.0
        assert steering_of(second.body)["blend"][0]["vector"] == BRIEF
        assert "vllm_xargs" not in third.body
        assert {part.body["n"] for part in (first, second, third)} == {2}

    def test_make_one_request_where_all_are_steered_alike(self) -> None:
        (part,) = self.parts([self.pirate, self.pirate])
        assert part.body["prompt"] == ["prompt 0", "prompt 1"]

    def test_keep_the_personas_own_blend(self) -> None:
        persona = Definition(blend=(BlendComponent(vector=BRIEF, alpha=0.5),))
        steered, plain = self.parts([self.pirate, None], persona)
        assert [component["vector"] for component in steering_of(steered.body)["blend"]] == [BRIEF, CALM]
        assert [component["vector"] for component in steering_of(plain.body)["blend"]] == [BRIEF]

    def test_are_told_from_one_prompt_of_tokens(self) -> None:
        assert count_prompts({"prompt": [1, 2, 3]}, "completion") == 1
        assert count_prompts({"prompt": [[1, 2], [3]]}, "completion") == 2
        assert count_prompts({"prompt": "one"}, "completion") == 1
        assert count_prompts({"messages": HELLO}, "chat") == 1


class TestCounts:
    @pytest.mark.parametrize("name", ["n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens"])
    @pytest.mark.parametrize("value", ["1000", 1000.0, True, [1]])
    def test_are_integers_so_that_limits_can_go_by_them(self, name: str, value: object) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            count_prompts({"prompt": "Hi", name: value}, "completion")
        assert refusal.value.param == name
        count_prompts({"prompt": "Hi", name: None}, "completion")


class TestResponses:
    persona = Definition(
        system_prompt="Be kind.",
        sampling=Sampling(temperature=0.2, max_tokens=64),
        output_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        blend=(BlendComponent(vector=CALM),),
    )

    def test_get_the_personas_words_as_instructions(self) -> None:
        assert ask({"input": "Hi"}, self.persona, "responses")["instructions"] == "Be kind."
        own = ask({"input": "Hi", "instructions": "In French."}, self.persona, "responses")
        assert own["instructions"] == "Be kind.\n\nIn French."

    def test_have_one_system_message_where_the_input_begins_with_one(self) -> None:
        items = [{"role": "developer", "content": "In French."}, *HELLO]
        body = ask({"input": items}, self.persona, "responses")
        assert body["input"] == [{"role": "developer", "content": "Be kind.\n\nIn French."}, *HELLO]
        assert "instructions" not in body

    def test_have_the_defaults_under_their_own_names(self) -> None:
        body = ask({"input": "Hi"}, self.persona, "responses")
        assert (body["temperature"], body["max_output_tokens"]) == (0.2, 64)
        assert body["text"] == {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}
        assert not {"max_tokens", "response_format", "stream_options"} & body.keys()
        own = {"input": "Hi", "max_output_tokens": 5, "text": {"format": {"type": "text"}}, "stream": True}
        body = ask(own, self.persona, "responses")
        assert (body["max_output_tokens"], body["text"]) == (5, {"format": {"type": "text"}})
        assert "stream_options" not in body

    def test_are_steered(self) -> None:
        assert steering_of(ask({"input": "Hi"}, self.persona, "responses"))["blend"]

    @pytest.mark.parametrize("store", [True, False, None])
    def test_are_never_stored(self, store: bool | None) -> None:
        assert ask({"input": "Hi", "store": store}, PLAIN_MODEL, "responses")["store"] is False

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id"),
            ({"input": "Hi", "background": True}, "background"),
            ({"input": "Hi", "truncation": "auto"}, "truncation"),
            ({}, "input"),
            ({"input": []}, "input"),
            ({"input": "Hi", "instructions": 7}, "instructions"),
            ({"input": "Hi", "text": 7}, "text"),
        ],
    )
    def test_refuse_what_would_be_remembered_or_hidden(self, body: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            ask(body, self.persona, "responses")
        assert refusal.value.param == field


class TestEmbeddings:
    def test_are_the_plain_models(self) -> None:
        body = ask({"input": ["a", "b"], "dimensions": 8}, PLAIN_MODEL, "embedding")
        assert body == {"model": "base", "input": ["a", "b"], "dimensions": 8, "cache_salt": "salt"}

    @pytest.mark.parametrize(
        "persona", [Definition(blend=(BlendComponent(vector=CALM),)), Definition(system_prompt="Hi")]
    )
    def test_are_refused_where_the_persona_would_be_missing(self, persona: Definition) -> None:
        with pytest.raises(Unsupported) as refusal:
            ask({"input": "a"}, persona, "embedding")
        assert refusal.value.param == "model"

    def test_are_refused_with_a_skill(self) -> None:
        with pytest.raises(Unsupported) as refusal:
            ask({"input": "a"}, PLAIN_MODEL, "embedding", skill=BlendComponent(vector=CALM))
        assert refusal.value.param == "steer_skill"

    def test_are_bounded(self) -> None:
        with pytest.raises(InvalidRequest):
            count_prompts({"input": ["a"] * 2049}, "embedding")


class TestLocks:
    @pytest.mark.parametrize(
        ("lock", "field", "value", "kind"),
        [
            ("temperature", "temperature", 0.5, "chat"),
            ("temperature", "temperature", "warm", "chat"),
            ("temperature", "temperature", False, "chat"),
            ("seed", "use_beam_search", True, "completion"),
            ("max_tokens", "max_tokens", 5, "completion"),
            ("max_tokens", "max_completion_tokens", 5, "chat"),
            ("max_tokens", "max_output_tokens", 5, "responses"),
            ("stop", "stop", [], "chat"),
            ("stop", "stop_token_ids", [2], "chat"),
            ("stop", "ignore_eos", True, "chat"),
            ("stop", "min_tokens", 100, "chat"),
            ("stop", "bad_words", ["END"], "chat"),
            ("response_format", "response_format", {"type": "text"}, "chat"),
            ("response_format", "structured_outputs", {"choice": ["a"]}, "completion"),
            ("response_format", "guided_json", {}, "chat"),
            ("response_format", "tool_choice", "required", "chat"),
            ("tools", "tools", [], "chat"),
            ("tools", "tool_choice", "none", "responses"),
            ("tools", "functions", [{}], "chat"),
            ("steer_skill", "steer_skill", "pirate", "chat"),
            ("steer_skill", "steer_alpha", 2, "chat"),
            ("system", "instructions", "Be rude.", "responses"),
            ("system", "chat_template", "{{ 1 }}", "chat"),
        ],
    )
    def test_keep_a_field_and_what_undoes_it_the_personas(self, lock: str, field: str, value: Any, kind: Kind) -> None:
        prompts: dict[str, Any] = {"chat": {"messages": HELLO}, "completion": {"prompt": "Hi"}}
        prompt = prompts.get(kind, {"input": "Hi"})
        with pytest.raises(LockedParameter) as refusal:
            ask({**prompt, field: value}, Definition(locked=(lock,)), kind)
        assert (refusal.value.param, refusal.value.code) == (field, "locked_parameter")
        assert "owner has locked" in refusal.value.message
        ask({**prompt, field: None}, Definition(locked=(lock,)), kind)

    @pytest.mark.parametrize("role", ["system", "developer", "System", "system\n"])
    def test_keep_other_voices_out(self, role: str) -> None:
        with pytest.raises(LockedParameter) as refusal:
            ask({"messages": [*HELLO, {"role": role, "content": "No."}]}, Definition(locked=("system",)))
        assert refusal.value.param == "messages[1]"
        with pytest.raises(LockedParameter) as refusal:
            ask({"input": [{"role": role, "content": "No."}]}, Definition(locked=("system",)), "responses")
        assert refusal.value.param == "input[0]"

    def test_look_inside(self) -> None:
        with pytest.raises(LockedParameter) as refusal:
            body = {"input": "Hi", "text": {"format": {"type": "text"}}}
            ask(body, Definition(locked=("response_format",)), "responses")
        assert refusal.value.param == "text.format"
        for lock, name in (("system", "persona"), ("tools", "custom_tools")):
            with pytest.raises(LockedParameter) as refusal:
                ask({"messages": HELLO, "chat_template_kwargs": {name: 1}}, Definition(locked=(lock,)))
            assert refusal.value.param == f"chat_template_kwargs.{name}"

    def test_leave_everything_else_open(self) -> None:
        persona = Definition(locked=("temperature", "system", "tools"), sampling=Sampling(temperature=0.2))
        body = ask(
            {"messages": HELLO, "top_p": 0.5, "text": {}, "chat_template_kwargs": {"enable_thinking": False}}, persona
        )
        assert (body["temperature"], body["top_p"]) == (0.2, 0.5)

    def test_know_every_field_that_can_be_locked(self) -> None:
        ask({"messages": HELLO}, Definition(locked=LOCKABLE))


def test_each_tenant_has_its_own_cache_salt_which_takes_the_secret_to_know() -> None:
    salts = {derive_cache_salt(secret, tenant) for secret in ("one", "two") for tenant in ("acme", "globex")}
    assert len(salts) == 4
    assert derive_cache_salt("one", "acme") == derive_cache_salt("one", "acme")
