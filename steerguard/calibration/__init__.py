"""How strong a vector may be: what it does to answers, and what it does to the model, from a sweep on an engine.

`calibrate` asks and `analyse` judges; `measures` and `probe` say how much of a behavior there is in an answer, `damage`
what it lost. Nothing is imported here: a reader of stored results (`result`) needs neither torch nor an engine.
"""
