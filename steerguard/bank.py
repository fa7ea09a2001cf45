"""The persistent buffers through which a forward pass is steered, and the book-keeping of what is in them.

Every decoder block adds `bank[slots[block][row_of_token]]`: `row_of_token` is the one per-step write, `slots`
maps a row to a place in the bank for each block, `bank` holds the summed vectors. The addresses never change, so
CUDA graphs replay over them and torch.compile fuses the gathers. Row 0 and slot 0 are "nothing is added".

Needs torch; knows no engine. The caller writes before the forward pass it is meant for, on the same stream.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from steerguard.blend import UNSTEERED, FloatArray


class BankFull(RuntimeError):
    """More distinct rows or slots are needed at once than the bank was sized for."""


class SteeringBank:
    """Rows of summed vectors on one device.

    Args:
        blocks: 0-based indices of the decoder blocks this worker owns (all of them but under pipeline parallelism).
        hidden_size: width of the residual stream.
        max_rows: distinct rows that one step may need; two per request cover any batch.
        max_slots: non-zero (row, block) pairs that may be held at once.
        max_tokens: the most tokens that one forward pass may have, padding included.
        dtype, device: of the residual stream.
    """

    def __init__(
        self,
        *,
        blocks: Sequence[int],
        hidden_size: int,
        max_rows: int,
        max_slots: int,
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.blocks = tuple(blocks)
        self.max_rows = max_rows
        self.max_slots = max_slots
        self.bank = torch.zeros(max_slots + 1, hidden_size, dtype=dtype, device=device)
        self.slots = torch.zeros(len(self.blocks), max_rows + 1, dtype=torch.int32, device=device)
        self.row_of_token = torch.zeros(max_tokens, dtype=torch.int32, device=device)
        self.evictions = 0
        self._block_position = {block: i for i, block in enumerate(self.blocks)}
        # Mirrors of the device's tables; the order is of last use, oldest first.
        self._rows: OrderedDict[str, int] = OrderedDict()
        self._slots_of_row: dict[int, list[int]] = {}
        self._free_rows = list(range(max_rows, 0, -1))
        self._free_slots = list(range(max_slots, 0, -1))
        self._written = np.zeros(0, dtype=np.int32)

    @property
    def rows_in_use(self) -> int:
        return len(self._rows)

    @property
    def bytes_allocated(self) -> int:
        """Bytes of device memory held by the three buffers."""
        return sum(t.numel() * t.element_size() for t in (self.bank, self.slots, self.row_of_token))

    def has(self, digest: str) -> bool:
        return digest == UNSTEERED or digest in self._rows

    def row(self, digest: str) -> int:
        """The index of a row that is held; marks it as used. KeyError if it isn't held."""
        if digest == UNSTEERED:
            return 0
        self._rows.move_to_end(digest)
        return self._rows[digest]

    def forget(self, digest: str) -> None:
        """Drops a row, held or not."""
        if digest in self._rows:
            self._release(digest)

    def place(self, rows: Mapping[str, Mapping[int, FloatArray]], keep: Collection[str]) -> None:
        """Brings summed rows ({digest: {block: [hidden_size]}}) into the bank, evicting the least recently used.

        Rows named in `keep` (those of the step at hand) are never evicted. Blocks this worker doesn't own are
        passed over. Raises BankFull, with the bank as it was but for evictions, if there is no room.
        """
        wanted = {
            digest: {b: v for b, v in row.items() if b in self._block_position}
            for digest, row in rows.items()
            if not self.has(digest)
        }
        if not wanted:
            return
        self._make_room(len(wanted), sum(map(len, wanted.values())), set(keep) | set(wanted))
        values: list[FloatArray] = []
        slot_ids: list[int] = []
        table: list[tuple[int, int, int]] = []
        for digest, row in wanted.items():
            index = self._free_rows.pop()
            used = []
            for block, value in row.items():
                slot = self._free_slots.pop()
                used.append(slot)
                slot_ids.append(slot)
                values.append(value)
                table.append((self._block_position[block], index, slot))
            self._rows[digest] = index
            self._slots_of_row[index] = used
        device = self.bank.device
        if values:
            staged = torch.from_numpy(np.stack(values)).to(device=device, dtype=self.bank.dtype)
            self.bank.index_copy_(0, torch.tensor(slot_ids, dtype=torch.long, device=device), staged)
            entries = torch.tensor(table, dtype=torch.long, device=device)
            self.slots[entries[:, 0], entries[:, 1]] = entries[:, 2].to(torch.int32)

    def write_rows(self, row_of_token: npt.NDArray[np.int32]) -> None:
        """Sets this step's row of every scheduled token; tokens past the end (padding) add nothing."""
        count = len(row_of_token)
        if np.array_equal(row_of_token, self._written):
            return
        padded = np.zeros(max(count, len(self._written)), dtype=np.int32)
        padded[:count] = row_of_token
        staged = torch.from_numpy(padded)
        if self.row_of_token.device.type == "cuda":
            # A fresh pinned buffer each time: the copy may still be running when the next step is prepared.
            staged = staged.pin_memory()
        self.row_of_token[: len(padded)].copy_(staged, non_blocking=True)
        self._written = padded[:count]

    def clear_rows(self) -> None:
        """As `write_rows`, for a step in which no token is steered."""
        if len(self._written):
            self.row_of_token[: len(self._written)].zero_()
            self._written = self._written[:0]

    def _make_room(self, rows: int, slots: int, keep: set[str]) -> None:
        for digest in [d for d in self._rows if d not in keep]:
            if len(self._free_rows) >= rows and len(self._free_slots) >= slots:
                break
            self._release(digest)
            self.evictions += 1
        if len(self._free_rows) < rows or len(self._free_slots) < slots:
            raise BankFull(
                f"{rows} rows and {slots} slots are needed, {len(self._free_rows)} and {len(self._free_slots)} are "
                f"free of {self.max_rows} and {self.max_slots}"
            )

    def _release(self, digest: str) -> None:
        index = self._rows.pop(digest)
        self.slots[:, index].zero_()
        self._free_slots.extend(self._slots_of_row.pop(index))
        self._free_rows.append(index)
