"""A tenant with keys, limits far above what is asked, and personas; and the stub as its engine. Prints the keys.

python -m benchmarks.gateway.seed STUB_URL
"""

import json
import os
import sys

import django
import numpy as np

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.core.management import call_command  # noqa: E402

from benchmarks.gateway import ENGINE_KEY, MODEL, PERSONAS, TENANT  # noqa: E402
from inference import services as engines  # noqa: E402
from inference.models import Engine  # noqa: E402
from inference.services import Observation  # noqa: E402
from personas import services  # noqa: E402
from personas.models import LIMIT_NAMES  # noqa: E402
from steerguard.vectors import SteeringVector  # noqa: E402

KEYS = 4
LIMITS = dict.fromkeys(LIMIT_NAMES, 10**12)


def seed(stub_url: str) -> list[str]:
    tenant = services.create_tenant(slug=TENANT, name="Acme")
    services.update_tenant(tenant=tenant, limits=LIMITS)
    random = np.random.default_rng(0)
    for number, name in enumerate(PERSONAS):
        rows = {layer: random.normal(size=576).astype(np.float32) for layer in (10, 14)}
        content = SteeringVector(layers=rows, hidden_size=576, base_model=MODEL, name=f"vector-{number:03}")
        vector = services.store_vector(tenant=tenant, vector=content)
        persona = services.create_persona(
            tenant=tenant,
            slug=name.removeprefix(f"{TENANT}/"),
            name=f"Persona {number}",
            definition={
                "blend": [{"vector": vector.digest, "alpha": 1.0}],
                "system_prompt": "You work for Acme. Be brief and friendly.",
                "sampling": {"temperature": 0.2},
            },
        )
        services.publish_persona(persona=persona)
    engine = engines.register_engine(name="stub", url=stub_url, api_key=ENGINE_KEY)
    seen = Observation(status=Engine.Status.READY, answered=True, base_model=MODEL)
    engines.record_observation(engine=engine, observation=seen)
    return [services.issue_api_key(tenant=tenant, name=f"app {n}", limits=LIMITS)[1] for n in range(KEYS)]


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    print(json.dumps(seed(sys.argv[1])))
