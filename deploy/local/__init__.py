"""SteerGuard on one machine: everything behind `make install`, `make model`, `make run` and `make smoke`.

`problem`, `progress` and `install` use the standard library only, because they run before anything is
installed. The rest runs from .venv. Nothing here imports Django models: the product is started, not used.
"""
