"""The floor of `make bench-gateway`: as little as a relay in Python can do. No keys, no personas, nothing counted.

python -m benchmarks.gateway.bare PORT UPSTREAM_URL
"""

import sys

import aiohttp
import uvloop
from aiohttp import web

SESSION = web.AppKey("session", aiohttp.ClientSession)


async def relay(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    async with request.app[SESSION].post(request.path, data=body, headers={"content-type": "application/json"}) as got:
        if got.content_type != "text/event-stream":
            return web.Response(body=await got.read(), status=got.status, content_type=got.content_type)
        answer = web.StreamResponse(headers={"content-type": got.headers["content-type"]})
        await answer.prepare(request)
        async for data in got.content.iter_any():
            await answer.write(data)
        return answer


async def make_app(upstream: str) -> web.Application:
    app = web.Application()
    app[SESSION] = aiohttp.ClientSession(upstream, connector=aiohttp.TCPConnector(limit=0))
    app.router.add_post("/{path:.*}", relay)
    return app


if __name__ == "__main__":
    # The event loop that uvicorn gives the gateway.
    loop = uvloop.new_event_loop()
    web.run_app(make_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), loop=loop, access_log=None, print=None)
