"""Contrastive pairs in, steering vectors out.

`pairs` reads what people write, `activations` runs the model over it, `mean_difference` makes the vector. All
but `pairs` need torch and transformers, which an engine machine has and a web server need not: nothing is
imported here, so that checking a pairs file stays cheap.
"""
