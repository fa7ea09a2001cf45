"""Other public ways to steer, as contestants of `make bench-steering`.

`python -m benchmarks.peers` puts each peer's own packages, and nothing that .venv has already, into a folder of
`var/bench-peers`; the peer then runs on .venv's Python with that folder on its path, so beside the same vLLM and torch
as everyone else. What a peer declares about Python and vLLM is not enforced (`--no-deps --ignore-requires-python`):
whether it steers there is tried instead, with `effect` (benchmarks/peers/contestant.py). docs/benchmarks.md says what
that showed, and why IBM's vLLM-Hook isn't here.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "var" / "bench-peers"


@dataclass(frozen=True)
class Peer:
    """One peer: how it is started, and what is measured of it."""

    kind: str
    module: str  # whose `main` answers requests, as benchmarks.contestant does
    note: str  # what a reader of its row must know
    variants: dict[str, int]  # row -> distinct vectors, 0 being none
    batches: tuple[int, ...]
    plugin: str = ""  # the one vLLM plugin to load

    @property
    def folder(self) -> Path:
        return FOLDER / self.kind

    @property
    def requirements(self) -> Path:
        return Path(__file__).parent / f"requirements-{self.kind}.txt"

    @property
    def environment(self) -> dict[str, str]:
        """Variables on top of those that every contestant gets."""
        return {"VLLM_PLUGINS": self.plugin, "PYTHONPATH": f"{ROOT}:{self.folder}"}

    def command(self, model: Path) -> list[str]:
        return [sys.executable, "-m", self.module, str(model)]

    @property
    def fingerprint(self) -> str:
        return f"{sys.version}\n{self.requirements.read_text()}"

    @property
    def stamp(self) -> Path:
        return self.folder / "installed.txt"

    @property
    def installed(self) -> bool:
        return self.stamp.exists() and self.stamp.read_text() == self.fingerprint


PEERS = (
    Peer(
        kind="vllm-lens",
        module="benchmarks.peers.vllm_lens",
        note="eager, which it forces",
        variants={"vllm-lens idle": 0, "vllm-lens 50": 50},
        batches=(1, 8, 64),
        plugin="activations",
    ),
    Peer(
        kind="hotwire",
        module="benchmarks.peers.hotwire",
        note="compiled, adapted: its Triton kernel in torch, armed on the CPU runner; prompts stay unsteered",
        variants={"hotwire (adapted) idle": 0, "hotwire (adapted) 50": 50},
        batches=(1, 8, 64),
        plugin="hotwire_cpu",
    ),
    Peer(
        kind="steering-vectors",
        module="benchmarks.peers.steering_vectors",
        note="Hugging Face transformers, one blend for the whole batch",
        variants={"transformers, steering-vectors": 1},
        batches=(64,),
    ),
)


def available() -> list[Peer]:
    """The peers that are installed as their pins say."""
    return [peer for peer in PEERS if peer.installed]
