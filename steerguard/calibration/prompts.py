"""What a vector is tried on where the caller has nothing better: everyday questions of different kinds."""

PROMPTS = (
    "How was your day?",
    "What should I cook tonight?",
    "Tell me about the sea.",
    "My order hasn't arrived yet. What can I do?",
    "Why is the sky blue?",
    "Describe a walk through the city.",
    "How do I learn to play the piano?",
    "What do you think of Mondays?",
    "Explain what a bank account is.",
    "I lost my keys this morning.",
    "Tell me a short story about a dog.",
    "What is a good present for my sister?",
    "How does a bicycle stay upright?",
    "Should I move to another town for a job?",
    "What happens in a library?",
    "Give me advice for a long journey by train.",
)
