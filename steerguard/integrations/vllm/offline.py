"""Steering for offline use: `SteerGuardPlugin.attach(llm, vectors_dir=…)`, then `llm.generate` as ever.

Sampling parameters may name skills (files of the folder) instead of digests, one for all prompts or a list with
one per prompt: `extra_args={"steer_skill": […], "steer_alpha": […]}`, or `extra_body=…` with this module's
`SamplingParams`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steerguard.blend import BlendError
from steerguard.integrations.vllm.admission import Admission
from steerguard.integrations.vllm.norms import merge, probe_parameters, probe_prompts
from steerguard.integrations.vllm.patches import is_installed
from steerguard.integrations.vllm.wire import ALPHA_KEY, POSITIONS_KEY, SKILL_KEY, SPEC_KEY, STEER_KEYS
from steerguard.vectors import SteeringVector, read_vectors_dir, write_vector


def SamplingParams(*, extra_body: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """vLLM's `SamplingParams` that also takes `extra_body`, as the `openai` client does; it goes to `extra_args`."""
    from vllm import SamplingParams as VllmSamplingParams

    if extra_body:
        kwargs["extra_args"] = {**(kwargs.get("extra_args") or {}), **extra_body}
    return VllmSamplingParams(**kwargs)


class SteerGuardPlugin:
    """A handle on the vectors of one `LLM`."""

    def __init__(self, llm: Any, admission: Admission) -> None:
        self._core = llm.llm_engine.engine_core
        self._admission = admission
        self.skills: dict[str, str] = {}

    @classmethod
    def attach(cls, llm: Any, vectors_dir: str | Path | None = None) -> "SteerGuardPlugin":
        """Registers every `<name>.safetensors` of `vectors_dir`, and lets `llm` take skills by those names.

        Raises RuntimeError if the plugin isn't loaded in the engine, VectorError or BlendError (both ValueError)
        for a file that is no vector or doesn't fit the model.
        """
        processor = llm.llm_engine.input_processor
        if not is_installed() or not hasattr(processor, "steerguard"):
            raise RuntimeError(
                "this LLM runs without SteerGuard: install the steerguard package beside vLLM and, if VLLM_PLUGINS is "
                "set, name steerguard in it, before the LLM is made"
            )
        plugin = cls(llm, processor.steerguard)
        if not processor.steerguard.norms:
            processor.steerguard.set_norms(_measure_norms(llm))
        for name, vector in (read_vectors_dir(Path(vectors_dir)) if vectors_dir is not None else {}).items():
            plugin.register(vector, name=name)
        _take_skills(llm, plugin)
        return plugin

    def register(self, vector: SteeringVector, *, name: str | None = None) -> str:
        """Puts a vector on the engine under a skill name (its own by default); its digest. Idempotent."""
        self._admission.check_vector(vector)
        _call_core(self._core, "steerguard_register", write_vector(vector))
        self._admission.add(vector)
        if name or vector.name:
            self.skills[name or vector.name] = vector.digest
        return vector.digest

    def remove(self, name: str) -> None:
        """Takes a skill's vector off the engine.

        Raises KeyError for an unknown name, RuntimeError while an unfinished request uses the vector.
        """
        digest = self.skills[name]
        # The front door closes first, so that nothing new comes to need it meanwhile.
        vector = self._admission.discard(digest)
        if _call_core(self._core, "steerguard_remove", digest) == "in_use":
            if vector is not None:
                self._admission.add(vector)
            raise RuntimeError(f"skill {name!r}: expected one that no unfinished request uses, found it in use")
        del self.skills[name]

    def state(self) -> dict[str, Any]:
        """What the engine says of its steering: vectors, rows in use, bytes (as `GET /v1/steering`)."""
        state: dict[str, Any] = _call_core(self._core, "steerguard_state")
        return state

    def blend(self, skill: str, alpha: float = 1.0, positions: str = "all") -> dict[str, Any]:
        """The spec of one skill, for `extra_args={"steerguard": …}`. BlendError for an unknown skill."""
        if not isinstance(skill, str) or skill not in self.skills:
            raise BlendError(SKILL_KEY, f"one of {', '.join(sorted(self.skills)) or 'no skills'}", repr(skill)[:80])
        return {"blend": [{"vector": self.skills[skill], "alpha": alpha, "positions": positions}]}


def _measure_norms(llm: Any) -> dict[int, float]:
    model_config = llm.llm_engine.model_config
    tokenizer = None if model_config.skip_tokenizer_init else llm.get_tokenizer()
    core = llm.llm_engine.engine_core
    _call_core(core, "steerguard_start_probe")
    try:
        prompts = probe_prompts(tokenizer, model_config.get_vocab_size())
        llm.generate(prompts, probe_parameters(), use_tqdm=False)
    finally:
        measured = _call_core(core, "steerguard_finish_probe")
    return merge(measured, model_config.get_total_num_hidden_layers())


def _call_core(core: Any, method: str, *args: Any) -> Any:
    """Calls an engine-core method, in this process or in the core's own (vllm/v1/engine/core_client.py)."""
    if hasattr(core, "call_utility"):
        return core.call_utility(method, *args)
    return getattr(core.engine_core, method)(*args)


def _take_skills(llm: Any, plugin: SteerGuardPlugin) -> None:
    """Makes the methods of `llm` that take prompts understand `steer_skill` and `steer_alpha`, also as lists."""
    from vllm.renderers.inputs.preprocess import conversation_to_seq, prompt_to_seq

    for method, to_sequence in (
        ("generate", prompt_to_seq),
        ("enqueue", prompt_to_seq),
        ("chat", conversation_to_seq),
        ("enqueue_chat", conversation_to_seq),
    ):
        setattr(llm, method, _taking_skills(getattr(llm, method), to_sequence, plugin))


def _taking_skills(original: Any, to_sequence: Callable[[Any], Sequence[Any]], plugin: SteerGuardPlugin) -> Any:
    """`original(prompts, sampling_params, …)` for which skills are turned into blend specs first."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        prompts = next(iter(bound.arguments.values()))
        if (params := bound.arguments.get("sampling_params")) is not None:
            bound.arguments["sampling_params"] = _expand(params, len(to_sequence(prompts)), plugin)
        return original(*bound.args, **bound.kwargs)

    return wrapped


def _expand(params: Any, count: int, plugin: SteerGuardPlugin) -> Any:
    """Sampling parameters of `count` prompts with skills turned into specs: one each where any of them is a list."""
    if isinstance(params, Sequence):
        return [_with_spec(p, plugin, 0, None) for p in params]
    extra = params.extra_args or {}
    lists = {key: extra[key] for key in STEER_KEYS if isinstance(extra.get(key), list | tuple)}
    if not lists:
        return _with_spec(params, plugin, 0, None)
    for key, values in lists.items():
        if len(values) != count:
            raise BlendError(key, f"one value per prompt ({count})", f"{len(values)}")
    return [_with_spec(params, plugin, i, lists) for i in range(count)]


def _with_spec(params: Any, plugin: SteerGuardPlugin, index: int, lists: dict[str, Any] | None) -> Any:
    extra = dict(params.extra_args or {})
    given = {key: extra.pop(key) for key in STEER_KEYS if key in extra}
    if not given:
        return params
    for key, values in (lists or {}).items():
        given[key] = values[index]
    if SKILL_KEY not in given:
        raise BlendError(SKILL_KEY, f"a skill for {' and '.join(given)}", "nothing")
    if (skill := given[SKILL_KEY]) is not None:
        if extra.get(SPEC_KEY) is not None:
            raise BlendError(SKILL_KEY, f"either skills or {SPEC_KEY}", "both")
        extra[SPEC_KEY] = plugin.blend(skill, given.get(ALPHA_KEY, 1.0), given.get(POSITIONS_KEY, "all"))
    copy = params.clone()
    copy.extra_args = extra or None
    return copy
