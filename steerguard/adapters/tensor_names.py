"""Tensors by name: which module each belongs to, as current peft writes them.

`base_model.model.<module>.lora_A.weight` and `.lora_B.weight`; for embeddings `.lora_embedding_A` and `_B`; and, beside
those, a copy of the base's own matrix as `.base_layer.weight`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from steerguard.adapters.base_model import BaseModel
from steerguard.adapters.problems import Problems
from steerguard.adapters.safetensors_file import Tensor

PREFIX = "base_model.model."
LINEAR = (".lora_A.weight", ".lora_B.weight")
EMBEDDING = (".lora_embedding_A", ".lora_embedding_B")
BASE_COPY = ".base_layer.weight"


@dataclass(frozen=True)
class Pair:
    """A module's two matrices."""

    a: Tensor
    b: Tensor


class Repeated:
    """Says once what is wrong with the same module in many blocks."""

    def __init__(self, base: BaseModel) -> None:
        self._base = base
        self._first: dict[tuple[str, str, str], tuple[str, str, str]] = {}
        self._more: dict[tuple[str, str, str], int] = {}

    def add(self, module: str, field: str, expected: str, found: str, *, same: str | None = None) -> None:
        """`same` is what makes two of these the same, where it isn't the module and what was found."""
        place = relative(module, self._base.block_path)
        key = (field, same, "") if same is not None else (place, field.removeprefix(PREFIX + module), found)
        if key in self._first:
            self._more[key] = self._more.get(key, 0) + 1
        else:
            self._first[key] = (field, expected, found)

    def report(self, problems: Problems) -> None:
        for key, (field, expected, found) in self._first.items():
            more = self._more.get(key)
            problems.add(field, expected, f"{found} (and {more} more like it)" if more else found)


def relative(module: str, block_path: str) -> str:
    """A module's name within its decoder block; outside of blocks, its whole name."""
    return module.removeprefix(f"{block_path}.").partition(".")[2] if block_of(module, block_path) else module


def block_of(module: str, block_path: str) -> str:
    """The text that stands for the decoder block's index; empty outside of blocks."""
    if not module.startswith(f"{block_path}."):
        return ""
    index = module[len(block_path) + 1 :].partition(".")[0]
    return index if index.isascii() and index.isdecimal() else ""


def pair_tensors(
    tensors: Mapping[str, Tensor], base: BaseModel, problems: Problems
) -> tuple[dict[str, Pair], dict[str, Tensor]]:
    """The pairs by module, and the copies of the base's embeddings by module, with what is wrong in `problems`."""
    halves: dict[str, dict[str, Tensor]] = {}
    copies: dict[str, Tensor] = {}
    unexpected = Repeated(base)
    beyond: set[int] = set()
    for name, tensor in tensors.items():
        module, half = _split(name, base)
        if half is None:
            expected = f"{PREFIX}<module>{LINEAR[0]} or {LINEAR[1]}"
            unexpected.add(module or name, name, expected, _why(name))
        elif half == BASE_COPY:
            copies[module] = tensor
        elif module in base.modules:
            halves.setdefault(module, {})[half] = tensor
        elif (index := block_of(module, base.block_path)) and len(index) < 8 and int(index) >= base.num_layers:
            beyond.add(int(index))
        else:
            taken = ", ".join(sorted({one.rpartition(".")[2] for one in base.modules}))
            expected = f"a module that vLLM takes LoRA on in {base.architecture}: {taken}"
            unexpected.add(module, name, expected, module)
    unexpected.report(problems)
    if beyond:
        problems.add("layers", f"0 to {base.num_layers - 1}, as the base model", spans(beyond))
    pairs = {}
    for module, found in sorted(halves.items()):
        if len(found) == 2:
            pairs[module] = Pair(found["A"], found["B"])
        else:
            (half,) = found
            other = "B" if half == "A" else "A"
            problems.add(found[half].name, f"its lora_{other} beside it", f"only lora_{half}")
    return pairs, copies


def _split(name: str, base: BaseModel) -> tuple[str, str | None]:
    """A tensor's module and which of its parts it is: A, B, BASE_COPY, or None for what peft doesn't write here."""
    if not name.startswith(PREFIX):
        return "", None
    rest = name.removeprefix(PREFIX)
    endings = EMBEDDING if rest.endswith(EMBEDDING) else LINEAR
    for half, ending in zip("AB", endings, strict=True):
        if rest.endswith(ending):
            module = rest.removesuffix(ending)
            # An embedding has its own form, and nothing else has that.
            fits = (module == base.embedding) == (endings is EMBEDDING) or module not in base.modules
            return module, half if fits else None
    module = rest.removesuffix(BASE_COPY)
    if rest.endswith(BASE_COPY) and module in base.known and not block_of(module, base.block_path):
        return module, BASE_COPY
    return module, None


def _why(name: str) -> str:
    if "lora_magnitude_vector" in name:
        return "a tensor of DoRA"
    if ".modules_to_save." in name or name.endswith((".embed_tokens.weight", ".lm_head.weight", ".score.weight")):
        return "a whole module, which vLLM doesn't serve"
    if name.endswith("lora_B.bias"):
        return "a bias, which vLLM doesn't serve"
    if ".lora_A." in name or ".lora_B." in name:
        return "a name with something else behind lora_A or lora_B"
    return "another name"


def spans(numbers: set[int]) -> str:
    """`0 to 3, 7`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in spans)
