"""The SteerGuard article's snippet, run as it stands but for the import of SamplingParams.

`python -m tests.steerguard.vllm.article MODEL VECTORS_DIR` prints what was answered as JSON.
"""

import json
import sys
from typing import Any


def main(model: str, vectors_dir: str) -> None:
    from vllm import LLM

    from steerguard.integrations.vllm import SamplingParams, SteerGuardPlugin

    llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=8)
    SteerGuardPlugin.attach(llm, vectors_dir=vectors_dir)

    requests: list[dict[str, Any]] = [
        {"prompt": "Audit user permissions for admin account", "skill": "safe_sql_generator", "alpha": 1.5},
        {"prompt": "Explain product return policy to unhappy user", "skill": "sycophancy_reduction", "alpha": 1.2},
        {"prompt": "Format patient record", "skill": "strict_json", "alpha": 1.0},
    ]
    sampling_params = SamplingParams(
        temperature=0.0,
        max_tokens=10,
        extra_body={
            "steer_skill": [r["skill"] for r in requests],
            "steer_alpha": [r["alpha"] for r in requests],
        },
    )
    outputs = llm.generate([r["prompt"] for r in requests], sampling_params)
    answers = {"steered": [list(out.outputs[0].token_ids) for out in outputs]}

    plain = SamplingParams(temperature=0.0, max_tokens=10)
    outputs = llm.generate([r["prompt"] for r in requests], plain)
    answers["plain"] = [list(out.outputs[0].token_ids) for out in outputs]

    refused = []
    for extra_body in (
        {"steer_skill": ["strict_json"], "steer_alpha": [1.0]},
        {"steer_skill": "no_such_skill"},
        {"steer_skill": "strict_json", "steer_alpha": float("nan")},
        {"steer_alpha": 1.0},
        {"steerguard": {"blend": [{"vector": "0" * 64, "alpha": 1.0}]}},
    ):
        try:
            llm.generate([r["prompt"] for r in requests], SamplingParams(extra_body=extra_body))
        except ValueError as error:
            refused.append(str(error))
    print("ANSWER", json.dumps({**answers, "refused": refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
