"""Characters that no text may hold, whoever sent it: one list for definitions, rows and the playground's socket."""

import re

# PostgreSQL can't store NUL, and no encoding can write half of a surrogate pair.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
STORABLE_RULE = "no NUL and no unpaired surrogates"

# A name stands in lists, titles and logs: controls (C0, DEL, C1) break them, and bidirectional embeddings, overrides
# and isolates make it read as another one (https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing).
UNFIT_FOR_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
NAME_RULE = "no control characters and no overrides of the text's direction"
