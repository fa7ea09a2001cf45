"""The inputs of a plan as a person gives them, one by one as text: the same for the command and the page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jobs.planner.adapters import AdapterShape
from jobs.planner.calibration import Calibration, read_calibration
from jobs.planner.errors import PlanError
from jobs.planner.hardware import BUSES, Hardware
from jobs.planner.plan import CLAIMED_LORA_PART, Question
from jobs.planner.shape import ATTENTION_MODULES, LINEAR_MODULES, PRESETS, QUANTIZATION_BITS, ModelShape, find_shape
from jobs.planner.speed import Traffic

Kind = Literal["int", "float", "text", "bool"]
MODULE_SETS = {"attention": ATTENTION_MODULES, "all": LINEAR_MODULES, "qv": ("q_proj", "v_proj")}
# The preset that `make bench-steering` measures, by what it calls the model.
MEASURED_PRESETS = {"SmolLM2-135M-Instruct": "smollm2-135m"}


@dataclass(frozen=True)
class Input:
    """One input: its name is the option and the query parameter, and what errors name."""

    name: str
    kind: Kind
    default: str
    label: str
    help: str
    group: str
    choices: tuple[str, ...] = ()


_MODEL, _GPU, _TRAFFIC, _LORA, _STEERING = "Model", "GPU", "Traffic", "Adapters", "Steering"
INPUTS: tuple[Input, ...] = (
    Input("model", "text", "llama-3.1-8b", "Model", "preset", _MODEL, tuple(PRESETS)),
    Input("quantization", "text", "", "Weights", "of linear layers; or as preset", _MODEL, ("", *QUANTIZATION_BITS)),
    Input("context_tokens", "int", "4096", "Context, tokens", "prompt and answer of one request at most", _MODEL),
    Input("max_seqs", "int", "256", "Requests at once", "at most; vLLM's max-num-seqs", _MODEL),
    Input("gpu_gib", "float", "80", "Memory, GiB", "of one GPU", _GPU),
    Input("gpus", "int", "1", "GPUs per engine", "tensor parallel", _GPU),
    Input("bus", "text", "pcie5", "Bus", "from main memory", _GPU, tuple(BUSES)),
    Input("price", "float", "2.5", "Price of a GPU hour", "in your currency", _GPU),
    Input("utilization", "float", "0.9", "Part of memory used", "vLLM's gpu-memory-utilization", _GPU),
    Input("reserve_gib", "float", "2", "Reserve, GiB", "activations and CUDA graphs", _GPU),
    Input("memory_gb_per_s", "float", "3350", "Memory bandwidth, GB/s", "peak; 3,350 is H100 SXM", _GPU),
    Input("tflops", "float", "989", "TFLOPS", "peak, 16 bits, dense; 989 is H100 SXM", _GPU),
    Input("personas", "int", "50", "Personas", "adapters, or blends", _TRAFFIC),
    Input("requests_per_s", "float", "2", "Requests a second", "of all personas", _TRAFFIC),
    Input("prompt_tokens", "int", "500", "Prompt tokens", "mean", _TRAFFIC),
    Input("output_tokens", "int", "200", "Answer tokens", "mean", _TRAFFIC),
    Input("zipf_s", "float", "0", "Zipf exponent", "0: all asked equally; 1: few get most", _TRAFFIC),
    Input("rank", "int", "16", "Rank", "of an adapter", _LORA),
    Input("modules", "text", "attention", "Modules", "layers that are adapted", _LORA, tuple(MODULE_SETS)),
    Input("slots", "int", "8", "Slots", "adapters active at once; vLLM's max-loras", _LORA),
    Input("lora_part", "float", f"{CLAIMED_LORA_PART:.3f}", "Throughput left", "with adapters; a claim", _LORA),
    Input("restricted_slots", "bool", "", "Slots for these modules only", "vLLM's lora-target-modules", _LORA),
    Input("vectors_per_persona", "int", "1", "Vectors per persona", "in its blend", _STEERING),
    Input("layers_per_vector", "int", "1", "Blocks per vector", "that it steers", _STEERING),
    Input("whole_bank", "bool", "", "Bank for all blocks", "the plugin's default, as far as 256 MiB reach", _STEERING),
)  # fmt: skip
BY_NAME = {one.name: one for one in INPUTS}


def read_question(given: Mapping[str, str], *, allow_paths: bool = False) -> Question:
    """The question that these texts ask; what is missing or empty has its default. Raises PlanError.

    `allow_paths`: `model` may be a folder, and `modules` a list; a page that others reach must not read files.
    """
    values = {one.name: _parse(one, given.get(one.name) or one.default, allow_paths) for one in INPUTS}
    shape = find_shape(values["model"])
    if values["quantization"]:
        shape = replace(shape, quantization=values["quantization"])
    modules = values["modules"]
    return Question(
        shape=shape,
        hardware=Hardware(
            gpu_gib=values["gpu_gib"],
            gpus=values["gpus"],
            bus=values["bus"],
            utilization=values["utilization"],
            reserve_gib=values["reserve_gib"],
            memory_gb_per_s=values["memory_gb_per_s"],
            tflops=values["tflops"],
            price_per_gpu_hour=values["price"],
        ),
        personas=values["personas"],
        adapter=AdapterShape(values["rank"], MODULE_SETS.get(modules) or tuple(modules.split(","))),
        slots=values["slots"],
        restricted_slots=values["restricted_slots"],
        vectors_per_persona=values["vectors_per_persona"],
        layers_per_vector=values["layers_per_vector"],
        limit_layers=not values["whole_bank"],
        traffic=Traffic(values["requests_per_s"], values["prompt_tokens"], values["output_tokens"], values["zipf_s"]),
        context_tokens=values["context_tokens"],
        max_seqs=values["max_seqs"],
        lora_part=values["lora_part"],
    )


def find_errors(given: Mapping[str, str]) -> dict[str, PlanError]:
    """What is wrong with these texts, by input: all that can't be read, or else the first that can't be planned."""
    errors = {}
    for one in INPUTS:
        try:
            _parse(one, given.get(one.name) or one.default, False)
        except PlanError as error:
            errors[one.name] = error
    if not errors:
        try:
            read_question(given)
        except PlanError as error:
            errors[error.field] = error
    return errors


def find_calibration(shape: ModelShape, path: Path | None = None) -> Calibration | None:
    """The benchmark that measured this model: the file at `path`, or the installation's own if it is of this model.

    Raises PlanError naming `calibration` where a path was given and doesn't serve.
    """
    if path is not None:
        found = read_calibration(path)
        expected = MEASURED_PRESETS.get(found.model, found.model)
        if shape.name not in (expected, found.model):
            raise PlanError("calibration", f"a benchmark of {shape.name}", f"one of {found.model} in {path}")
        return found
    try:
        own = read_calibration()
    except PlanError:
        return None
    return own if shape.name in (MEASURED_PRESETS.get(own.model), own.model) else None


def _parse(one: Input, text: str, allow_paths: bool) -> Any:
    text = text.strip()
    free = allow_paths and one.name in ("model", "modules")
    if one.choices and not free and text.lower() not in one.choices:
        raise PlanError(one.name, " or ".join(filter(None, one.choices)), repr(text))
    if one.kind == "bool":
        return text.lower() not in ("", "0", "false", "no", "off")
    if one.kind == "text":
        return text if free else text.lower()
    try:
        value = int(text) if one.kind == "int" else float(text)
    except ValueError:
        expected = "a whole number" if one.kind == "int" else "a number"
        raise PlanError(one.name, expected, repr(text[:40])) from None
    if not math.isfinite(value) or abs(value) > 1e12:
        raise PlanError(one.name, "a number of ordinary size", repr(text[:40]))
    return value
