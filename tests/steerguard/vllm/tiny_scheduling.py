"""Requests that leave, crowd and outlive what they use: one vLLM run over a tiny model, stepped by hand.

`python -m tests.steerguard.vllm.tiny_scheduling FOLDER` makes the model in FOLDER and prints as one JSON line what was
asked and answered in each scene. A batch has three places, so the bank has six rows.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steerguard.vectors import SteeringVector
from tests.steerguard.vllm.tiny_models import HIDDEN_SIZE, LAYERS, PROMPTS, save_tiny_model

TOKENS = 10
MAX_SEQS = 3
LONG_PROMPT = [3 + (17 * i) % 250 for i in range(70)]  # two whole KV blocks of 32, and more

Part = tuple[int, float, str]  # seed of the vector, α, positions
Scene = list[dict[str, Any]]


def vector_of(seed: int) -> SteeringVector:
    """One block's vector; seeds that differ by LAYERS share the block."""
    values = np.random.default_rng(seed).standard_normal(HIDDEN_SIZE) * 3
    return SteeringVector({seed % LAYERS: values.astype(np.float32)}, HIDDEN_SIZE)


class Stage:
    """An engine, and a note of all that was asked of it and answered."""

    def __init__(self, folder: Path) -> None:
        from vllm import LLM

        from steerguard.integrations.vllm import SteerGuardPlugin

        self.llm = LLM(
            str(folder),
            skip_tokenizer_init=True,
            max_model_len=96,
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=48,
            block_size=32,
            enforce_eager=True,
            dtype="float32",
        )
        self.plugin = SteerGuardPlugin.attach(self.llm)
        self.digests = {seed: self.plugin.register(vector_of(seed), name=f"seed {seed}") for seed in range(LAYERS)}
        self.asked: dict[str, dict[str, Any]] = {}

    def parameters(self, tokens: int, steering: dict[str, Any] | None) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=0, extra_args=steering
        )

    def add(self, name: str, prompt: Sequence[int], *parts: Part, tokens: int = TOKENS) -> None:
        """Lets a request in; `step` computes."""
        blend = [{"vector": self.digests[seed], "alpha": alpha, "positions": where} for seed, alpha, where in parts]
        steering = {"steerguard": {"blend": blend}} if blend else None
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": list(prompt)}, self.parameters(tokens, steering))
        self.asked[name] = {"prompt": list(prompt), "parts": parts, "tokens": [], "logprobs": [], "finished": False}

    def step(self, times: int | None = None) -> None:
        """Some steps, or all that are left."""
        while self.llm.llm_engine.has_unfinished_requests() and times != 0:
            for output in self.llm.llm_engine.step():
                self.note(self.asked[output.request_id], output)
            times = None if times is None else times - 1

    def note(self, entry: dict[str, Any], output: Any) -> None:
        (answer,) = output.outputs
        entry["tokens"] = list(answer.token_ids)
        entry["logprobs"] = [float(e[t].logprob) for t, e in zip(answer.token_ids, answer.logprobs, strict=True)]
        entry["finished"] = output.finished

    def scene(self) -> Scene:
        """What was asked and answered since the scene before."""
        entries, self.asked = list(self.asked.values()), {}
        return entries


def abort(stage: Stage) -> dict[str, Any]:
    """One of three requests is aborted half-way, and asked again under its old id."""
    stage.add("leaving", PROMPTS[0], (1, 1.0, "all"), tokens=60)
    stage.add("steered", PROMPTS[2], (2, 1.0, "all"))
    stage.add("unsteered", PROMPTS[0])
    stage.step(5)
    used = stage.plugin.state()["in_use"]
    half_way = {name: [len(entry["tokens"]), entry["finished"]] for name, entry in stage.asked.items()}
    stage.llm.llm_engine.abort_request(["leaving"])
    used_after = stage.plugin.state()["in_use"]
    del stage.asked["leaving"]
    stage.add("leaving", PROMPTS[1], (3, 1.0, "all"))
    stage.step()
    stage.add("again", PROMPTS[0], (1, 1.0, "all"))
    stage.step()
    digest = stage.digests[1]
    return {"scene": stage.scene(), "half_way": half_way, "in_use": [digest in used, digest in used_after]}


def removal(stage: Stage) -> dict[str, Any]:
    """A vector is to go while a request uses it."""
    said = []
    stage.add("using it", PROMPTS[0], (3, 1.0, "all"), tokens=20)
    stage.step(4)
    try:
        stage.plugin.remove("seed 3")
    except RuntimeError as error:
        said.append(str(error))
    stage.add("using it, too", PROMPTS[1], (3, -1.0, "response"))
    stage.step()
    stage.plugin.remove("seed 3")
    try:
        stage.add("too late", PROMPTS[0], (3, 1.0, "all"))
    except ValueError as error:
        said.append(str(error))
    held = stage.plugin.state()["vectors"]
    scene = stage.scene()
    stage.plugin.register(vector_of(3), name="seed 3")
    return {"scene": scene, "said": said, "held_after": stage.digests[3] in held, "digest": stage.digests[3]}


def crowd(stage: Stage) -> dict[str, Any]:
    """Many blends at once, each with two rows of its own, unsteered requests between them."""
    before = stage.plugin.state()
    for i in range(16):
        prompt = PROMPTS[i % len(PROMPTS)]
        parts: tuple[Part, ...] = ((i % LAYERS, 0.5 + i / 20, "prompt"), ((i + 1) % LAYERS, 1 - i / 9, "response"))
        stage.add(f"{i}", prompt, *(() if i % 5 == 4 else parts))
    stage.step()
    return {"scene": stage.scene(), "before": before, "after": stage.plugin.state()}


def rename(stage: Stage) -> dict[str, Any]:
    """One skill's name stands for other content each time; the prompt's KV is in the cache."""
    entries = []
    prompt: Any = {"prompt_token_ids": LONG_PROMPT}
    for seed in (10, 14, 10):
        stage.plugin.register(vector_of(seed), name="brand")
        (output,) = stage.llm.generate(
            [prompt],
            stage.parameters(TOKENS, {"steer_skill": "brand", "steer_alpha": 1.0}),
            use_tqdm=False,
        )
        entry = {"prompt": LONG_PROMPT, "parts": [(seed, 1.0, "all")], "cached": output.num_cached_tokens}
        stage.note(entry, output)
        entries.append(entry)
    return {"scene": entries}


def main(folder: Path) -> dict[str, Any]:
    save_tiny_model("llama", folder)
    stage = Stage(folder)
    return {scene.__name__: scene(stage) for scene in (abort, removal, crowd, rename)}


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ |= {"VLLM_PLUGINS": "steerguard", "STEERGUARD_MAX_DOSE": "8"}
    print("ANSWER", json.dumps(main(Path(sys.argv[1]))))
