"""One engine under comparison, in a process of its own, driven over its standard input.

`python -m benchmarks.contestant MODEL KIND [FOLDER]`; KIND is `stock`, `steering`, or `lora-N` with N adapter slots
and the adapters in FOLDER. Each line in is a JSON request (`Contestant` method and arguments), each line out its
JSON answer.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROMPT_TOKENS = 32
PREFIX_TOKENS = 1000
BLEND_LAYERS = ((8, 12, 16), (10, 14, 18), (12, 16, 20))
ADAPTERS = 50


class Contestant:
    """An `LLM` and what can be asked of it."""

    def __init__(self, model: str, kind: str, folder: str | None = None) -> None:
        from vllm import LLM

        self.kind = kind
        arguments: dict[str, Any] = {"max_num_seqs": 256, "max_model_len": 2048, "disable_log_stats": False}
        if os.environ.get("BENCH_EAGER"):
            arguments["enforce_eager"] = True
        if kind.startswith("lora-"):
            slots = int(kind.removeprefix("lora-"))
            arguments |= {"enable_lora": True, "max_loras": slots, "max_cpu_loras": ADAPTERS, "max_lora_rank": 16}
        self.llm = LLM(model, **arguments)
        self.adapters = sorted(Path(folder).iterdir()) if folder else []
        self.rng = np.random.default_rng(0)
        self.vocabulary = self.llm.llm_engine.model_config.get_vocab_size()
        self.hidden_size = self.llm.llm_engine.model_config.get_hidden_size()
        if kind == "steering":
            from steerguard.integrations.vllm import SteerGuardPlugin

            self.plugin = SteerGuardPlugin.attach(self.llm)
            self.digests = [self.plugin.register(self._vector(layers)) for layers in BLEND_LAYERS]

    def generate(self, batch: int, tokens: int, distinct: int) -> dict[str, Any]:
        """One batch, each request greedy to its full length; with `distinct` blends or adapters (0: none)."""
        prompts = [self._prompt(PROMPT_TOKENS) for _ in range(batch)]
        began = time.perf_counter()
        outputs = self._ask(prompts, tokens, distinct, "all")
        seconds = time.perf_counter() - began
        stats = [o.metrics for o in outputs]
        decoded = [(s.last_token_ts - s.first_token_ts) / max(tokens - 1, 1) for s in stats]
        return {
            "tokens_per_s": batch * tokens / seconds,
            "ttft_ms": statistics.median(s.first_token_latency for s in stats) * 1e3,
            "inter_token_ms": statistics.median(decoded) * 1e3,
        }

    def shared_prefix(self, first: int, count: int) -> dict[str, Any]:
        """A new long prefix asked once plainly, then by each of `count` personas (or adapters), one after another."""
        prefix = self._prompt(PREFIX_TOKENS)
        self._ask([prefix + self._prompt(8)], 1, 0, "response")
        ttft, cached = [], []
        for index in range(first, first + count):
            (output,) = self._ask([prefix + self._prompt(8)], 1, ADAPTERS, "response", offset=index)
            ttft.append(output.metrics.first_token_latency * 1e3)
            cached.append(output.num_cached_tokens / len(output.prompt_token_ids))
        return {"ttft_ms": ttft, "cache_hit_rate": cached}

    def register(self) -> dict[str, Any]:
        """Milliseconds from a vector in memory to the first token that it steers."""
        vector = self._vector((11,))
        prompt = self._prompt(PROMPT_TOKENS)
        began = time.perf_counter()
        digest = self.plugin.register(vector)
        spec = {"blend": [{"vector": digest, "alpha": 0.05}]}
        self._generate([prompt], [self._parameters(1, {"steerguard": spec})], None)
        return {"register_to_first_steered_ms": (time.perf_counter() - began) * 1e3}

    def memory(self) -> dict[str, Any]:
        """Resident bytes of the engine's processes, and what the plugin's buffers take of them."""
        import psutil

        me = psutil.Process()
        resident = sum(p.memory_info().rss for p in (me, *me.children(recursive=True)))
        held = self.plugin.state()["bytes_allocated"] if self.kind == "steering" else None
        return {"resident_bytes": resident, "steering_bytes": held}

    def _ask(self, prompts: list[list[int]], tokens: int, distinct: int, positions: str, offset: int = 0) -> Any:
        which = [(offset + i) % distinct if distinct else None for i in range(len(prompts))]
        parameters = [self._parameters(tokens, self._steering(w, positions)) for w in which]
        return self._generate(prompts, parameters, [self._adapter(w) for w in which])

    def _generate(self, prompts: list[list[int]], parameters: list[Any], adapters: list[Any] | None) -> Any:
        inputs: Any = [{"prompt_token_ids": p} for p in prompts]
        loras = adapters if adapters and any(adapters) else None
        return self.llm.generate(inputs, parameters, use_tqdm=False, lora_request=loras)

    def _parameters(self, tokens: int, extra_args: dict[str, Any] | None) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra_args
        )

    def _steering(self, which: int | None, positions: str) -> dict[str, Any] | None:
        if which is None or self.kind != "steering":
            return None
        alphas = (0.02 + which * 1e-4, 0.03, 0.04 - which * 1e-4)
        blend = [
            {"vector": digest, "alpha": alpha, "positions": positions}
            for digest, alpha in zip(self.digests, alphas, strict=True)
        ]
        return {"steerguard": {"blend": blend}}

    def _adapter(self, which: int | None) -> Any:
        from vllm.lora.request import LoRARequest

        if which is None or not self.adapters:
            return None
        path = self.adapters[which % len(self.adapters)]
        return LoRARequest(path.name, which % len(self.adapters) + 1, str(path))

    def _prompt(self, length: int) -> list[int]:
        return [int(t) for t in self.rng.integers(100, self.vocabulary, length)]

    def _vector(self, layers: tuple[int, ...]) -> Any:
        from steerguard.vectors import SteeringVector

        rows = {layer: self.rng.standard_normal(self.hidden_size).astype(np.float32) for layer in layers}
        return SteeringVector(rows, self.hidden_size)


def serve(make: Callable[[], Any]) -> None:
    """Answers each request on standard input with a method of what `make` returns."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM logs to standard output
    contestant = make()
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(contestant, request.pop("do"))(**request)
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    serve(lambda: Contestant(*sys.argv[1:]))
