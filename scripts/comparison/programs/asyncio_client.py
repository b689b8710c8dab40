"""Some connections of one asyncio client, each of which sends a line and waits for it, again and again, for a time."""

import asyncio
import sys
import time

from report import Report

LINE = b"x" * 63 + b"\n"


async def ask(where, report):
    if where.isdigit():
        reader, writer = await asyncio.open_connection("127.0.0.1", int(where))
    else:
        reader, writer = await asyncio.open_unix_connection(where)
    while report.going():
        start = time.perf_counter()
        writer.write(LINE)
        if await reader.readline() != LINE:
            sys.exit("another line came back")
        report.took.append(time.perf_counter() - start)
    writer.close()


async def main(where, connections, seconds):
    report = Report(seconds)
    await asyncio.gather(*(ask(where, report) for _ in range(connections)))
    report.print()


asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
