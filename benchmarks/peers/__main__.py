"""`python -m benchmarks.peers`: installs what is missing of each peer. Asks the package index; a minute, 220 MB."""

import shutil
import subprocess
import sys

from rich.console import Console

from benchmarks.peers import PEERS, ROOT, Peer

# A plugin of ours beside hotwire's: see benchmarks/peers/hotwire_cpu.py.
HOTWIRE_CPU = {
    "METADATA": "Metadata-Version: 2.1\nName: hotwire-cpu\nVersion: 0\n",
    "entry_points.txt": "[vllm.general_plugins]\nhotwire_cpu = benchmarks.peers.hotwire_cpu:register\n",
}

console = Console(stderr=True)


def install(peer: Peer) -> str | None:
    """Fills the peer's folder; returns pip's reason where it can't."""
    if peer.folder.exists():
        shutil.rmtree(peer.folder)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python"]
    command += ["--target", str(peer.folder), "-r", str(peer.requirements)]
    pip = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if pip.returncode != 0:
        errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
        return errors[-1] if errors else pip.stderr
    if peer.plugin == "hotwire_cpu":
        metadata = peer.folder / "hotwire_cpu-0.dist-info"
        metadata.mkdir()
        for name, text in HOTWIRE_CPU.items():
            (metadata / name).write_text(text)
    peer.stamp.write_text(peer.fingerprint)
    return None


def main() -> int:
    failures = 0
    for peer in PEERS:
        if peer.installed:
            console.print(f"{peer.kind}: already in {peer.folder.relative_to(ROOT)}")
        elif reason := install(peer):
            failures += 1
            console.print(f"{peer.kind}: not installed. {reason}", markup=False)
        else:
            console.print(f"{peer.kind}: installed in {peer.folder.relative_to(ROOT)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
