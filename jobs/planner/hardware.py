"""Memory, and the bus by which adapters reach it. Bandwidths are of one direction."""

from dataclasses import dataclass

from jobs.planner.errors import require

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class Bus:
    """A way into a GPU's memory: peak and measured bandwidth in bytes per second, one direction."""

    name: str
    peak_bytes_per_s: float
    effective_bytes_per_s: float
    source: str
    """Where the effective figure was measured."""

    def transfer_s(self, size_bytes: float, *, peak: bool = False) -> float:
        """Seconds that `size_bytes` take, alone on the bus, from pinned memory in one piece."""
        return size_bytes / (self.peak_bytes_per_s if peak else self.effective_bytes_per_s)


# Peaks as they are usually quoted (the articles' 64 and 32 GB/s); 128b/130b encoding leaves 63.0 and 31.5 of them.
BUSES: dict[str, Bus] = {
    "pcie3": Bus("PCIe 3.0 ×16", 16e9, 12e9, "V100 in github.com/ZaidQureshi/bam issue 54"),
    "pcie4": Bus("PCIe 4.0 ×16", 32e9, 25.5e9, "RTX 4090, host to device, github.com/NVIDIA/nvbandwidth issue 15"),
    "pcie5": Bus("PCIe 5.0 ×16", 64e9, 52.8e9, "H100, device to host, github.com/NVIDIA/nvbandwidth issue 24"),
    "nvlink4": Bus("NVLink 4", 450e9, 380e9, "H100 SXM, from a neighbour GPU, github.com/NVIDIA/nccl issue 1264"),
}


@dataclass(frozen=True)
class Hardware:
    """One engine's GPUs (tensor parallel) and what they cost.

    `gpu_gib` is one GPU's memory in GiB; `utilization` the part that the engine may take (vLLM's
    gpu_memory_utilization); `reserve_gib` what activations, CUDA graphs and the CUDA context take of it (an assumption:
    vLLM measures it at start); `memory_gb_per_s` and `tflops` are one GPU's peaks, for the best speed there can be.
    """

    gpu_gib: float = 80.0
    gpus: int = 1
    bus: str = "pcie5"
    utilization: float = 0.9
    reserve_gib: float = 2.0
    memory_gb_per_s: float = 3350.0
    tflops: float = 989.0
    price_per_gpu_hour: float = 2.5

    def __post_init__(self) -> None:
        require(0 < self.gpu_gib <= 4096, "gpu_gib", "GiB above 0, up to 4096", self.gpu_gib)
        require(self.gpus in (1, 2, 4, 8, 16), "gpus", "1, 2, 4, 8 or 16", self.gpus)
        require(self.bus in BUSES, "bus", " or ".join(BUSES), self.bus)
        require(0 < self.utilization <= 1, "utilization", "a part above 0, up to 1", self.utilization)
        require(0 <= self.reserve_gib < self.gpu_gib, "reserve_gib", "GiB below the GPU's memory", self.reserve_gib)
        require(self.memory_gb_per_s > 0, "memory_gb_per_s", "GB/s above 0", self.memory_gb_per_s)
        require(self.tflops > 0, "tflops", "TFLOPS above 0", self.tflops)
        require(self.price_per_gpu_hour >= 0, "price", "a price of 0 or more", self.price_per_gpu_hour)

    @property
    def usable_bytes(self) -> int:
        """Of one GPU: for weights, adapters or rows, and KV cache."""
        return int(self.gpu_gib * GIB * self.utilization - self.reserve_gib * GIB)
