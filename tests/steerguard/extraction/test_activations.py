from threading import Event

import numpy as np
import pytest
import torch

from steerguard.extraction.activations import (
    AnswerActivations,
    LanguageModel,
    collect_activations,
    load_language_model,
    render_prompt,
)
from steerguard.extraction.forward import Reader, Text
from steerguard.extraction.progress import Stopped
from tests.tiny_model import write_tiny_model

EXCHANGES = [
    ("How are you?", "Fine."),
    ("Say something long.", "This answer takes quite a few more bytes than the others do."),
    ("Hi", "Hello there!"),
    ("How are you?", "As well as can be expected of somebody who answers the same question twice."),
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
            np.testing.assert_allclose(found.means[column, row], expected.mean(dim=0), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.norms[column, row], expected.norm(dim=-1).mean(), rtol=1e-4)


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


@pytest.mark.parametrize("tokens", ["response", "last", "all"])
def test_the_tokens_asked_for_are_read(tiny, tokens):
    found = collect_activations(tiny, EXCHANGES, layers=[1], tokens=tokens)
    for row, (prompt, answer) in enumerate(EXCHANGES):
        head = tiny.tokenizer.encode(render_prompt(tiny.tokenizer, prompt), add_special_tokens=False)
        tail = tiny.tokenizer.encode(answer, add_special_tokens=False)
        with torch.inference_mode():
            states = tiny.model(torch.tensor([head + tail]), output_hidden_states=True).hidden_states[2][0]
        expected = {"response": states[len(head) :], "last": states[-1:], "all": states[1:]}[tokens]
        np.testing.assert_allclose(found.means[0, row], expected.mean(dim=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.norms[0, row], expected.norm(dim=-1).mean(), rtol=1e-4)


def test_prompts_are_read_once_where_that_changes_nothing(tiny):
    texts = [Text((5, 6, 7), (8, 9)), Text((5, 6, 7), (9, 8, 7)), Text((5, 6, 4, 3), (9,))]
    reader = Reader(tiny.model, tiny.blocks, layers=[0, 3], tokens="response", texts=texts)
    assert reader.reuses_prompts
    reused, whole = reader.read(texts), reader._read_whole(texts)
    np.testing.assert_allclose(reused.means, whole.means, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reused.norms, whole.norms, rtol=1e-4, atol=1e-5)


def test_prompts_are_read_anew_where_a_models_cache_is_not_to_be_trusted(tiny, monkeypatch):
    """A model that forgets what it has seen gives other numbers, and is read without a cache."""
    forward = tiny.model.base_model.forward

    def forgetful(*args, **kwargs):
        if kwargs.pop("past_key_values", None) is not None:
            kwargs.pop("attention_mask", None)
            kwargs["use_cache"] = False
        return forward(*args, **kwargs)

    expected = collect_activations(tiny, EXCHANGES, layers=[1])
    monkeypatch.setattr(tiny.model.base_model, "forward", forgetful)
    texts = [Text((5, 6, 7), (8, 9)), Text((5, 6, 7), (9, 8, 7))]
    assert not Reader(tiny.model, tiny.blocks, layers=[1], tokens="response", texts=texts).reuses_prompts
    found = collect_activations(tiny, EXCHANGES, layers=[1])
    np.testing.assert_allclose(found.means, expected.means, rtol=1e-4, atol=1e-5)


def stop_after(batches: int, tiny: LanguageModel, work, **more) -> None:
    """A run that is asked to stop after so many batches."""
    event, seen = Event(), []

    def count(answers: int) -> None:
        seen.append(answers)
        if len(seen) == batches:
            event.set()

    with pytest.raises(Stopped):
        collect_activations(
            tiny,
            EXCHANGES,
            layers=[0, 1],
            batch_tokens=1,
            work=work,
            on_progress=count,
            should_stop=event.is_set,
            **more,
        )
    assert len(seen) == batches


def go_on(tiny: LanguageModel, work, **more) -> AnswerActivations:
    return collect_activations(tiny, EXCHANGES, layers=[0, 1], batch_tokens=1, work=work, **more)


def test_a_stopped_run_goes_on_where_it_was(tiny, tmp_path):
    stop_after(2, tiny, tmp_path)
    # Marks what was finished: if it were done again, the mark would be gone.
    means = np.load(tmp_path / "means.npy", mmap_mode="r+")
    finished = [row for row in range(len(EXCHANGES)) if means[0, row].any()]
    assert len(finished) == 2
    means[0, finished[0]] = 42.0
    means.flush()
    seen: list[int] = []
    found = go_on(tiny, tmp_path, on_progress=seen.append)
    assert sum(seen) == len(EXCHANGES)
    assert (found.means[0, finished[0]] == 42.0).all()
    expected = go_on(tiny, None)
    np.testing.assert_array_equal(found.means[1], expected.means[1])
    np.testing.assert_array_equal(found.norms, expected.norms)


def test_other_work_in_the_same_folder_begins_anew(tiny, tmp_path, tmp_path_factory):
    stop_after(2, tiny, tmp_path)
    other_tokens = go_on(tiny, tmp_path, tokens="last")
    np.testing.assert_array_equal(other_tokens.means, go_on(tiny, None, tokens="last").means)
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama", seed=1)
    other_model = load_language_model(folder)
    stop_after(2, tiny, tmp_path)
    np.testing.assert_array_equal(go_on(other_model, tmp_path).means, go_on(other_model, None).means)


def test_a_batch_that_the_manifest_does_not_name_is_done_again(tiny, tmp_path):
    stop_after(2, tiny, tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "steerguard.activations.v1", "key"')
    np.testing.assert_array_equal(go_on(tiny, tmp_path).means, go_on(tiny, None).means)


def test_a_folder_in_use_is_refused(tiny, tmp_path):
    def meanwhile(_answers: int) -> None:
        with pytest.raises(RuntimeError, match="found it in use"):
            go_on(tiny, tmp_path)

    go_on(tiny, tmp_path, on_progress=meanwhile)


def test_an_answer_longer_than_the_model_reads_is_refused(tiny):
    with pytest.raises(ValueError, match="answer 0: expected at most 2048 tokens with its prompt, found"):
        collect_activations(tiny, [("Hi", "x?" * 2_100)], layers=[0])
