"""What the playground's page and its websocket have to agree on, and what the page suggests to say."""

import re

SOCKET_PATH = "/ws/playground/"

MAX_MESSAGE_CHARS = 8_000
MAX_TOKENS = 1_024  # per answer
DEFAULT_MAX_TOKENS = 160
MAX_STRENGTH = 2.0  # times the persona's own α

# Open questions that any persona can answer and in which a voice shows within a sentence or two.
SAMPLE_MESSAGES = (
    "My parcel arrived broken. What can I do?",
    "Explain how rain forms.",
    "How was your weekend?",
    "Give me three tips for a job interview.",
    "Describe a walk by the sea.",
)

# A description may end by saying what to ask: `Answers like a pirate. Try: “Tell me about your ship.”`
_TRY = re.compile(r"\s*Try: [“\"](?P<message>[^”\"]+)[”\"]\s*\Z")


def split_description(description: str) -> tuple[str, list[str]]:
    """The description without the message that it suggests, and the messages to suggest: its own one first."""
    found = _TRY.search(description)
    if found is None:
        return description, list(SAMPLE_MESSAGES)
    own = found["message"]
    return description[: found.start()], [own, *(message for message in SAMPLE_MESSAGES if message != own)]
