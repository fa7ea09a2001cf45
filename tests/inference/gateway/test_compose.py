"""What the engine is asked, given what the client asked and what the persona says."""

import json
from typing import Any

import pytest

from inference.gateway.compose import (
    PLAIN_MODEL,
    Kind,
    asked_skill,
    compose,
    derive_cache_salt,
    wants_stream,
    wants_usage,
)
from inference.gateway.errors import FieldRefused, InvalidRequest
from personas.definition import BlendComponent, Definition, Sampling

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
        assert asked_skill({"steer_skill": "pirate", "steer_alpha": 2}) == ("pirate", 2.0)
        assert asked_skill({"steer_skill": "pirate"}) == ("pirate", None)
        assert asked_skill({}) is None

    def test_are_not_passed_on(self) -> None:
        body = ask({"messages": HELLO, "steer_skill": "pirate", "steer_alpha": 2})
        assert not {"steer_skill", "steer_alpha"} & body.keys()

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"steer_skill": ["pirate"]}, "steer_skill"),
            ({"steer_skill": 7}, "steer_skill"),
            ({"steer_alpha": 1.0}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": "1"}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": True}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": 1e300}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": 10**400}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": float("nan")}, "steer_alpha"),
            ({"steer_skill": "pirate", "steer_alpha": [1.0]}, "steer_alpha"),
        ],
    )
    def test_are_checked(self, body: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            asked_skill(body)
        assert refusal.value.param == field


def test_each_tenant_has_its_own_cache_salt_which_takes_the_secret_to_know() -> None:
    salts = {derive_cache_salt(secret, tenant) for secret in ("one", "two") for tenant in ("acme", "globex")}
    assert len(salts) == 4
    assert derive_cache_salt("one", "acme") == derive_cache_salt("one", "acme")
