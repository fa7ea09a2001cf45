# Everything a person types. `make` alone lists it; the work is done by the Python package deploy/local.

# The first Python that is new enough; override with PYTHON=…
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PY := .venv/bin/python
# Modules are compiled when first imported, and kept: some shells turn that off, which costs seconds at each start.
export PYTHONDONTWRITEBYTECODE :=

FAST := "not engine and not browser and not slow"
SLOW := "slow and not engine and not browser"
REST := "engine or browser"
# They wait more than they compute: twice as many processes as cores.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
# Every test of a file in one process, where they share what the file's fixtures made.
IN_PARALLEL = -n $(WORKERS) --dist loadfile
# A test that fails and passes at once is listed with why it failed, and fails nothing; one that fails twice does.
RERUNS := --reruns 1 --max-suite-reruns 5 --rerun-show-tracebacks
TEST_DATABASE_URL ?= postgres://postgres@127.0.0.1:5432/postgres

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run python ports install model triton smoke test test-fast bench-steering bench-peers-install bench-gateway bench-gateway-install bench-extract lint format openapi lock clean

help: ## list these commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The seconds it says in the end count from here.
run: export MAKE_RUN_STARTED := $(shell date +%s)
run: ports install model ## install what is missing, then run the whole product (Ctrl-C stops it)
	@$(PY) -m deploy.local.run

python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "✗ Python 3.11 or newer is needed: run \`sudo apt install python3 python3-venv\`, or set PYTHON." >&2; exit 1; }

ports: python
	@$(PYTHON) -m deploy.local.ports

install: python ## make .venv from the lock
	@$(PYTHON) -m deploy.local.install

model: install ## fetch and prepare the demo model
	@$(PY) -m deploy.local.model

triton: install ## put Triton aside in var/triton (1 GB), for the tests of vLLM's Model Runner V2 without a GPU
	@test -d var/triton/triton || { echo "Installing Triton into var/triton …" && mkdir -p -m 700 var && \
		$(PY) -m pip install -q --no-deps --target var/triton -r requirements-triton.txt; }

smoke: install model ## start everything in a temporary folder, ask a persona, stop; JSON on the last line
	@$(PY) -m deploy.local.smoke

test: install model triton ## every test: real engine, real browser; the quick ones on PostgreSQL too if one answers
	@if $(PY) -c 'import psycopg, sys; psycopg.connect(sys.argv[1], connect_timeout=3)' "$(TEST_DATABASE_URL)" 2>/dev/null; then \
		echo "On PostgreSQL:" && DATABASE_URL="$(TEST_DATABASE_URL)" $(PY) -m pytest -q -m $(FAST) $(IN_PARALLEL) $(RERUNS) && \
		echo "On SQLite:"; \
	else echo "No PostgreSQL answers at TEST_DATABASE_URL: SQLite only."; fi
	@$(PY) -m pytest -q -m $(FAST) $(IN_PARALLEL) $(RERUNS)
	@echo "The slow ones:"
	@$(PY) -m pytest -q -m $(SLOW) -n $(WORKERS) --dist load $(RERUNS)
	@echo "With the engine and the browser:"
	@$(PY) -m pytest -m $(REST) $(RERUNS)

test-fast: install ## the quick tests, which need neither an engine nor a browser
	@$(PY) -m pytest -q -m $(FAST) $(IN_PARALLEL)

bench-peers-install: install ## fetch the other plugins that bench-steering has rows for (220 MB, into var/bench-peers)
	@$(PY) -m benchmarks.peers

bench-steering: install model ## what steering costs beside stock vLLM, multi-LoRA and peers (QUICK=1: fewer samples)
	@$(PY) -m benchmarks.steering $(if $(QUICK),--quick)

bench-gateway: install ## what the gateway costs beside a bare relay, LiteLLM and vllm-router (QUICK=1: fewer samples)
	@$(PY) -m benchmarks.gateway $(if $(QUICK),--quick)

bench-gateway-install: install ## what bench-gateway compares with, in var/ (850 MB); it is done there too
	@$(PY) -m benchmarks.gateway.install

bench-extract: install model ## pairs per second of an extraction beside a plain Hugging Face loop (QUICK=1: a fifth, once)
	@$(PY) -m benchmarks.extract $(if $(QUICK),--quick)

lint: install ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy .

format: install ## let ruff rewrite what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

openapi: install ## write docs/openapi.yaml from the code
	@$(PY) manage.py write_openapi

lock: install ## compile the locks again after changing requirements*.txt
	@$(PY) -m deploy.local.lock

clean: ## remove what was built; DATA_DIR stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
