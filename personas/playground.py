"""What the playground's page and its websocket have to agree on."""

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
