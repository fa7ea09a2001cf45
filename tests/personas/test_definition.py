"""A definition is read strictly, and what is wrong with it is said field by field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personas.definition import Definition, find_vectors, name_skills, parse_definition
from personas.errors import InvalidDefinition
from personas.models import Tenant
from tests.conftest import MakeVector

DIGEST = "ab" * 32


def component(**changes: Any) -> dict[str, Any]:
    return {"vector": DIGEST, "alpha": 1.5, **changes}


def test_an_empty_definition_does_nothing() -> None:
    assert parse_definition({}) == Definition()


def test_a_full_definition_is_read_and_written_back() -> None:
    data = {
        "blend": [
            {"vector": DIGEST, "skill": "warm", "alpha": 1.5, "positions": "response", "layers": [10, 14]},
            {"vector": DIGEST, "skill": "", "alpha": -2.0, "positions": "all", "layers": None},
        ],
        "system_prompt": "You are kind.",
        "sampling": {"temperature": 0.7, "top_k": -1, "max_tokens": 200, "stop": ["END"], "seed": 7},
        "output_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": {}}},
        "max_dose": 1.5,
        "locked": ["response_format", "temperature"],
        "adapter": None,
    }
    definition = parse_definition(data)
    assert definition.blend[0].layers == (10, 14)
    assert definition.sampling.stop == ("END",)
    assert definition.as_json() == data


def test_layers_are_put_in_order() -> None:
    assert parse_definition({"blend": [component(layers=[14, 10])]}).blend[0].layers == (10, 14)


def test_one_stop_text_may_stand_alone() -> None:
    assert parse_definition({"sampling": {"stop": "END"}}).sampling.stop == ("END",)


@pytest.mark.parametrize(
    ("data", "field", "expected", "found"),
    [
        ([], "definition", "an object", "[]"),
        ({"blend": {}}, "blend", "a list of at most 16", "{}"),
        ({"blend": [component()] * 17}, "blend", "a list of at most 16", None),
        ({"blend": [3]}, "blend[0]", "an object", "3"),
        ({"blend": [{"alpha": 1}]}, "blend[0].vector", "digest", "nothing"),
        ({"blend": [component(vector="warm")]}, "blend[0].vector", "64 hexadecimal digits", '"warm"'),
        ({"blend": [component(vector=DIGEST + "\n")]}, "blend[0].vector", "64 hexadecimal digits", None),
        ({"blend": [component(), component(alpha=float("nan"))]}, "blend[1].alpha", "a number", "NaN"),
        ({"blend": [component(alpha=float("inf"))]}, "blend[0].alpha", "a number", "Infinity"),
        ({"blend": [component(alpha=10**400)]}, "blend[0].alpha", "a number", None),
        ({"blend": [component(alpha=None)]}, "blend[0].alpha", "a number", "null"),
        ({"blend": [component(alpha=True)]}, "blend[0].alpha", "a number", "true"),
        ({"blend": [component(alpha="1")]}, "blend[0].alpha", "a number", '"1"'),
        ({"blend": [component(positions="some")]}, "blend[0].positions", "all, prompt or response", '"some"'),
        ({"blend": [component(layers=[])]}, "blend[0].layers", "at least one", "[]"),
        ({"blend": [component(layers=[3, 3])]}, "blend[0].layers", "different", "[3, 3]"),
        ({"blend": [component(layers=[-1])]}, "blend[0].layers", "0-based", "[-1]"),
        ({"blend": [component(layers=[[1]])]}, "blend[0].layers", "0-based", "[[1]]"),
        ({"blend": [component(strength=1)]}, "blend[0].strength", "only the fields vector", "1"),
        ({"system_prompt": None}, "system_prompt", "text of at most 32000", "null"),
        ({"system_prompt": "a\x00b"}, "system_prompt", "text", None),
        ({"system_prompt": "\ud800"}, "system_prompt", "text", None),
        ({"system_prompt": "x" * 32_001}, "system_prompt", "text of at most 32000", None),
        ({"sampling": {"temperature": 3}}, "sampling.temperature", "from 0 up to 2", "3"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p", "above 0", "0"),
        ({"sampling": {"max_tokens": 0}}, "sampling.max_tokens", "an integer from 1", "0"),
        ({"sampling": {"max_tokens": 1.5}}, "sampling.max_tokens", "an integer", "1.5"),
        ({"sampling": {"seed": 2**63}}, "sampling.seed", "an integer", None),
        ({"sampling": {"stop": ["a", ""]}}, "sampling.stop[1]", "text of 1 to 200", '""'),
        ({"sampling": {"n": 2}}, "sampling.n", "only the fields temperature", "2"),
        ({"output_format": "json"}, "output_format", "json_object", '"json"'),
        ({"output_format": {"type": "json_schema"}}, "output_format.json_schema.schema", "schema", "nothing"),
        ({"output_format": {"type": "json_object", "x": 1}}, "output_format.x", "only the fields type", "1"),
        ({"max_dose": 0}, "max_dose", "above 0", "0"),
        ({"locked": ["model"]}, "locked[0]", "one of temperature", '"model"'),
        ({"adapter": "lora"}, "adapter", "null", '"lora"'),
        ({"temperature": 1}, "temperature", "only the fields blend", "1"),
    ],
)
def test_a_bad_field_is_named_with_what_was_expected_and_found(
    data: object, field: str, expected: str, found: str | None
) -> None:
    with pytest.raises(InvalidDefinition) as refusal:
        parse_definition(data)
    assert refusal.value.field == field
    assert expected in refusal.value.expected
    assert found is None or refusal.value.found == found


def test_all_bad_fields_are_reported_at_once() -> None:
    with pytest.raises(InvalidDefinition) as refusal:
        parse_definition({"blend": [component(alpha="x", layers=7)], "max_dose": -1, "zeal": 1})
    fields = {problem.field for problem in refusal.value.problems}
    assert fields == {"blend[0].alpha", "blend[0].layers", "max_dose", "zeal"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
field_names = ["blend", "system_prompt", "sampling", "output_format", "max_dose", "locked", "adapter"]
component_names = ["vector", "skill", "alpha", "positions", "layers"]
components = st.fixed_dictionaries(
    {"vector": st.just(DIGEST) | json_values},
    optional={name: json_values for name in component_names[1:]},
)
definitions = json_values | st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(field_names, json_values), "blend": st.lists(components, max_size=3)}
)


@given(definitions)
def test_any_json_is_either_refused_or_read_back_the_same(data: object) -> None:
    try:
        definition = parse_definition(data)
    except InvalidDefinition as refusal:
        assert refusal.problems
        return
    written = json.dumps(definition.as_json(), allow_nan=False)
    assert parse_definition(json.loads(written)) == definition


def problems_of(definition: Definition, tenant: Tenant) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidDefinition) as refusal:
        find_vectors(definition, tenant)
    return [(problem.field, problem.expected, problem.found) for problem in refusal.value.problems]


def blend_of(*digests: str, **changes: Any) -> Definition:
    return parse_definition({"blend": [component(vector=digest, **changes) for digest in digests]})


def test_own_and_shared_vectors_are_found_in_the_blends_order(acme: Tenant, make_vector: MakeVector) -> None:
    own, shared = make_vector(acme, "warm", seed=1), make_vector(None, "formal", seed=2)
    definition = blend_of(shared.digest, own.digest, shared.digest)
    vectors = find_vectors(definition, acme)
    assert vectors == [shared, own, shared]
    assert [part.skill for part in name_skills(definition, vectors).blend] == ["formal", "warm", "formal"]


def test_another_tenants_vector_reads_exactly_like_one_that_nobody_has(
    acme: Tenant, globex: Tenant, make_vector: MakeVector
) -> None:
    secret = make_vector(acme, "secret", layers=(3,))
    of_acme = problems_of(blend_of(secret.digest, layers=[9]), globex)
    of_nobody = problems_of(blend_of("0" * 64, layers=[9]), globex)
    assert [(field, expected) for field, expected, _found in of_acme] == [
        (field, expected) for field, expected, _found in of_nobody
    ]
    assert of_acme[0][2] == secret.digest
    assert len(of_acme) == len(of_nobody) == 1


def test_layers_that_a_vector_lacks_are_refused(acme: Tenant, make_vector: MakeVector) -> None:
    vector = make_vector(acme, "warm", layers=(10, 14))
    ((field, expected, found),) = problems_of(blend_of(vector.digest, layers=[10, 12]), acme)
    assert field == "blend[0].layers"
    assert "[10, 14]" in expected
    assert found == "[12]"


@pytest.mark.parametrize("other", [{"base_model": "Llama"}, {"hidden_size": 64}])
def test_a_blend_is_made_for_one_model(acme: Tenant, make_vector: MakeVector, other: dict[str, Any]) -> None:
    first, second = make_vector(acme, "warm", seed=1), make_vector(acme, "cold", seed=2, **other)
    ((field, expected, found),) = problems_of(blend_of(first.digest, second.digest), acme)
    assert field == "blend[1].vector"
    assert "SmolLM2-135M-Instruct with hidden size 576" in expected
    assert str(next(iter(other.values()))) in found
