"""Makes the files beside this one with the tools themselves, at the versions that their names say.

    pip install --target /tmp/tools --no-deps repeng==0.4.0 steering-vectors==0.12.2 hidden-directions==0.1.6
    pip install --target /tmp/tools scikit-learn
    PYTHONPATH=.:/tmp/tools python -m tests.steerguard.vectors.files.make

Each tool trains on the same random Llama of four blocks; `measured.npz` has, by forward hooks on the blocks, how
the same texts' last tokens differ, from which the tools' vectors follow at the right block. The
tools are not needed to run the tests.
"""

from pathlib import Path

import numpy as np
import torch

# repeng 0.4.0 says np.float_ in an annotation, which numpy 2 hasn't got.
np.float_ = np.float64  # type: ignore[attr-defined]

from hidden_directions.import_vector import import_to_pt  # type: ignore[import-not-found]  # noqa: E402
from repeng import ControlVector, DatasetEntry  # type: ignore[import-not-found]  # noqa: E402
from steering_vectors import train_steering_vector  # type: ignore[import-not-found]  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from tests.tiny_model import write_tiny_model  # noqa: E402

FOLDER = Path(__file__).parent
PAIRS = [
    ("I am so glad to see you today.", "I am so tired of all this rain."),
    ("What a lovely garden you have.", "What a terrible noise they make."),
    ("We had a wonderful time there.", "We lost everything in the fire."),
    ("The children laughed and sang.", "The children cried and fought."),
]


def main() -> None:
    folder = write_tiny_model(Path("/tmp/tiny-for-files"), num_blocks=4, hidden_size=16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    np.savez(FOLDER / "measured.npz", differences=measure(model, tokenizer))

    dataset = [DatasetEntry(positive=positive, negative=negative) for positive, negative in PAIRS]
    ControlVector.train(model, tokenizer, dataset, batch_size=1).export_gguf(FOLDER / "repeng-0.4.0.gguf")

    vector = train_steering_vector(model, tokenizer, PAIRS, read_token_index=-1, batch_size=1)
    torch.save(vector, FOLDER / "steering-vectors-0.12.2.pt")
    import_to_pt(vector, FOLDER / "hidden-directions-0.1.6.pt", n_layers=4)


def measure(model: torch.nn.Module, tokenizer: object) -> np.ndarray:
    """[pairs, blocks, hidden_size]: positive minus negative, of the last token after each block."""
    differences = []
    for pair in PAIRS:
        sides = []
        for text in pair:
            outputs: list[np.ndarray] = []
            handles = [
                block.register_forward_hook(
                    lambda _block, _inputs, output, outputs=outputs: outputs.append(
                        (output[0] if isinstance(output, tuple) else output)[0, -1].numpy()
                    )
                )
                for block in model.model.layers  # type: ignore[union-attr]
            ]
            with torch.no_grad():
                model(**tokenizer(text, return_tensors="pt"))  # type: ignore[operator]
            for handle in handles:
                handle.remove()
            sides.append(np.stack(outputs))
        differences.append(sides[0] - sides[1])
    return np.stack(differences)


if __name__ == "__main__":
    main()
