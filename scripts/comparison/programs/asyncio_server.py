"""A server of Python's asyncio that sends back each line. Listens on the port or path that it is given."""

import asyncio
import sys


async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def main(where):
    if where.isdigit():
        server = await asyncio.start_server(serve, "127.0.0.1", int(where))
    else:
        server = await asyncio.start_unix_server(serve, where)
    await server.serve_forever()


asyncio.run(main(sys.argv[1]))
