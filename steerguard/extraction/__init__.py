"""Contrastive pairs in, steering vectors out.

`pairs` reads what people write, `activations` runs the model over it, `mean_difference` makes the vector.
Needs torch and transformers, which an engine machine has and a web server need not: import this package
only where a model is about to be run.
"""

from steerguard.extraction.activations import (
    AnswerActivations,
    LanguageModel,
    collect_activations,
    load_language_model,
    model_name,
)
from steerguard.extraction.mean_difference import Extraction, extract_vector
from steerguard.extraction.pairs import Pair, PairsError, pairs_digest, read_pairs

__all__ = [
    "AnswerActivations",
    "Extraction",
    "LanguageModel",
    "Pair",
    "PairsError",
    "collect_activations",
    "extract_vector",
    "load_language_model",
    "model_name",
    "pairs_digest",
    "read_pairs",
]
