"""The OpenAI-compatible API under `/v1/`: a raw ASGI application in which `model` is a persona.

A request walks through the files in this order: `routes` and `app` (which handler), `authenticate` (key), `exchange`
(body), `resolve` (which persona, whose), `compose` with `locks` and `skills` (what the engine is asked), `metering`
(limits), `fleet` with `places` (which engine), `relay`, `sse` and `merge` (bytes back), `errors` (what a refusal looks
like). `directory` is all that they know of the database, `live` keeps it current and `loading` holds the ORM. `ask` is
the same path for code in this process, such as the playground.
"""
