"""Read a support ticket with one persona, answer it in the tone of another.

    SG_KEY=sg_… python docs/examples/support_pipeline.py "The app crashes when I pay."

Both are personas of the demo, and the same model with other vectors: nothing is loaded between the two calls. Steering
alone makes no valid JSON, so the first call also sends a `response_format`, which the engine holds the answer to.
"""

import json
import os
import sys
from typing import Any

from openai import OpenAI

EXTRACT = "northbank/plain-words"
ANSWER = "northbank/claims"

TICKET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "product": {"type": "string", "maxLength": 40},
        "problem": {"type": "string", "maxLength": 120},
        "urgent": {"type": "boolean"},
    },
    "required": ["product", "problem", "urgent"],
    "additionalProperties": False,
}


def extract(client: OpenAI, ticket: str) -> dict[str, Any]:
    """What the ticket says, as TICKET_SCHEMA has it. Raises ValueError when the answer was cut short."""
    answer = client.chat.completions.create(
        model=EXTRACT,
        messages=[{"role": "user", "content": f"Which product is this about, and what is wrong with it?\n\n{ticket}"}],
        response_format={"type": "json_schema", "json_schema": {"name": "ticket", "schema": TICKET_SCHEMA}},
        temperature=0,
        max_tokens=200,
    )
    fields: dict[str, Any] = json.loads(answer.choices[0].message.content or "")
    return fields


def reply(client: OpenAI, ticket: str, fields: dict[str, Any]) -> str:
    """A reply to the customer, in the tone of ANSWER."""
    about = f"{ticket}\n\nProduct: {fields['product']}. Problem: {fields['problem']}."
    answer = client.chat.completions.create(
        model=ANSWER,
        messages=[{"role": "user", "content": f"Write a short reply to this customer:\n\n{about}"}],
        max_tokens=160,
    )
    return answer.choices[0].message.content or ""


def main() -> None:
    client = OpenAI(base_url=os.environ.get("SG_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ["SG_KEY"])
    ticket = " ".join(sys.argv[1:]) or "The app crashes when I want to pay a bill, and the rent is due today."
    fields = extract(client, ticket)
    print(json.dumps(fields, indent=2))
    print(reply(client, ticket, fields))


if __name__ == "__main__":
    main()
