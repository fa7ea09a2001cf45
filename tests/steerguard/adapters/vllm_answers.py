"""`python -m tests.steerguard.adapters.vllm_answers BASE ADAPTERS`: what vLLM makes of each adapter in a folder.

Prints one JSON line: by the adapter's name, the greedy answer's tokens and logprobs, or vLLM's error. A process of its
own, because vLLM holds its engine for the life of one. Nothing of SteerGuard is loaded in it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

PROMPT = [5, 9, 200, 31, 7, 99, 14, 3]
TOKENS = 5
MAX_LORA_RANK = 16


def answers(base: str, folder: Path) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        base,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=4,
        enable_lora=True,
        max_loras=1,
        max_cpu_loras=2,
        max_lora_rank=MAX_LORA_RANK,
        enable_prefix_caching=False,
    )
    parameters = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=0)
    prompt: Any = [{"prompt_token_ids": PROMPT}]
    found: dict[str, Any] = {}
    for number, path in enumerate([None, *sorted(folder.iterdir())]):
        adapter = LoRARequest(path.name, number, str(path)) if path else None
        try:
            if adapter is not None:
                llm.llm_engine.add_lora(adapter)
        except Exception as error:
            found[path.name if path else ""] = f"{type(error).__name__}: {error}"
            continue
        (output,) = llm.generate(prompt, parameters, lora_request=adapter, use_tqdm=False)
        answer = output.outputs[0]
        tokens = list(answer.token_ids)
        steps: Any = answer.logprobs
        logprobs = [step[token].logprob for step, token in zip(steps, tokens, strict=True)]
        found[path.name if path else ""] = {"tokens": tokens, "logprobs": logprobs}
    return found


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_PLUGINS"] = ""
    # Failures come back to the caller instead of ending a process of its own.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    print("ANSWERS", json.dumps(answers(sys.argv[1], Path(sys.argv[2]))))
