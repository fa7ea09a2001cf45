"""How many personas fit: arithmetic for whoever has to buy the machine, before anything is bought.

`plan.py` puts it together; every other module is one subject (`shape`, `hardware`, `adapters`, `vectors`, `memory`,
`popularity`, `waiting`, `speed`, `calibration`, `articles`, `published`). Only `forms.py`, `views.py` and `urls.py`
know Django. Units are in the names: `_bytes`, `_s`, `_tokens`; GB is 10^9 bytes, MiB 2^20. docs/planner.md has every
formula with its source.
"""
