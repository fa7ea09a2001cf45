import numpy as np
import pytest
import torch

from steerguard.extraction.activations import LanguageModel, collect_activations, render_prompt

EXCHANGES = [
    ("How are you?", "Fine."),
    ("Say something long.", "This answer takes quite a few more bytes than the others do."),
    ("Hi", "Hello there!"),
]


def hidden_states_over_answer(tiny: LanguageModel, prompt: str, answer: str) -> tuple[torch.Tensor, ...]:
    """What transformers itself reports, unbatched, cut to the answer's tokens: [answer tokens, hidden] each."""
    head = tiny.tokenizer.encode(render_prompt(tiny.tokenizer, prompt), add_special_tokens=False)
    tail = tiny.tokenizer.encode(answer, add_special_tokens=False)
    with torch.inference_mode():
        output = tiny.model(torch.tensor([head + tail]), output_hidden_states=True)
    return tuple(states[0, len(head) :] for states in output.hidden_states)


def test_a_blocks_output_is_what_transformers_calls_the_next_hidden_state(tiny):
    found = collect_activations(tiny, EXCHANGES, layers=[2, 0])
    assert found.layers == (0, 2)
    for row, (prompt, answer) in enumerate(EXCHANGES):
        states = hidden_states_over_answer(tiny, prompt, answer)
        assert found.tokens[row] == len(states[0])
        for column, layer in enumerate(found.layers):
            expected = states[layer + 1]
            np.testing.assert_allclose(found.means[row, column], expected.mean(dim=0), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.norms[row, column], expected.norm(dim=-1).mean(), rtol=1e-4)


def test_the_last_block_is_read_before_the_final_norm(tiny):
    prompt, answer = EXCHANGES[2][0], "a"  # one token, so that its mean is itself
    found = collect_activations(tiny, [(prompt, answer)], layers=[tiny.num_blocks - 1])
    before_norm = torch.tensor(found.means[0, 0])
    after_norm = hidden_states_over_answer(tiny, prompt, answer)[-1][0]
    with torch.inference_mode():
        np.testing.assert_allclose(tiny.model.model.norm(before_norm), after_norm, rtol=1e-4, atol=1e-5)
    assert not np.allclose(before_norm, after_norm, rtol=1e-2)


def test_batches_do_not_change_what_an_answer_means(tiny):
    together = collect_activations(tiny, EXCHANGES, layers=[1])
    apart = collect_activations(tiny, EXCHANGES, layers=[1], batch_tokens=1)
    np.testing.assert_allclose(together.means, apart.means, rtol=1e-4, atol=1e-5)


def test_progress_counts_every_answer_once(tiny):
    seen: list[int] = []
    collect_activations(tiny, EXCHANGES, layers=[0], batch_tokens=100, on_progress=seen.append)
    assert sum(seen) == len(EXCHANGES)
    assert len(seen) > 1


def test_the_model_is_left_as_it_was(tiny):
    ids = torch.tensor([tiny.tokenizer.encode("Hello", add_special_tokens=False)])
    with torch.inference_mode():
        before = tiny.model(ids).logits
        collect_activations(tiny, EXCHANGES, layers=[1])
        assert torch.equal(tiny.model(ids).logits, before)


def test_without_a_chat_template_the_prompt_is_a_line_of_text(tiny, monkeypatch):
    monkeypatch.setattr(tiny.tokenizer, "chat_template", None)
    assert render_prompt(tiny.tokenizer, "Hi") == "Hi\n"
    assert collect_activations(tiny, [("Hi", "a")], layers=[0]).tokens == (1,)


@pytest.mark.parametrize("layers", [[4], [-1], [0, 99]])
def test_a_block_the_model_has_not_got_is_refused(tiny, layers):
    with pytest.raises(ValueError, match="expected blocks 0 to 3"):
        collect_activations(tiny, EXCHANGES, layers=layers)


def test_no_block_at_all_is_refused(tiny):
    with pytest.raises(ValueError, match="at least one block"):
        collect_activations(tiny, EXCHANGES, layers=[])
