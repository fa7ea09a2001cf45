"""What the gateway costs, beside a bare relay and beside what people take instead.

`stub` is the engine, `load` the clients, `bare` the floor, `contestants` starts and stops everybody, `seed` fills
SteerGuard's database, `install` fetches the others, `__main__` runs the rounds. Everything listens on loopback only.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODEL = "SmolLM2-135M-Instruct"  # what the stub serves
ENGINE_KEY = "stub-key"
TENANT = "acme"
PERSONAS = tuple(f"{TENANT}/persona-{number:03}" for number in range(100))
CHUNKS = 100  # of one stream
WORD = "steered"  # the text of a chunk, by which the clients count
