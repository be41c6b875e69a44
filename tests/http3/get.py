"""Sends one GET by HTTP/3 and writes the answer: the status in the first line, then the body.

get.py ADDRESS PORT HOST PATH AUTHORITIES: HOST is the name asked for, which the certificate must
have; AUTHORITIES is a file of those who may have issued it.
"""

import asyncio
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated

PATIENCE = 10


class Client(QuicConnectionProtocol):
    """One request, and what came back."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.status = b""
        self.body = b""
        self.done = asyncio.get_running_loop().create_future()

    async def get(self, host, path):
        stream = self._quic.get_next_available_stream_id()
        headers = [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", host.encode()),
            (b":path", path.encode()),
        ]
        self.http.send_headers(stream, headers, end_stream=True)
        self.transmit()
        await self.done

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated) and not self.done.done():
            reason = event.reason_phrase or f"error {event.error_code:#x}"
            self.done.set_exception(ConnectionError(reason))
        for received in self.http.handle_event(event):
            if isinstance(received, HeadersReceived):
                self.status = dict(received.headers).get(b":status", b"")
            elif isinstance(received, DataReceived):
                self.body += received.data
            else:
                continue
            if received.stream_ended and not self.done.done():
                self.done.set_result(None)


async def main(address, port, host, path, authorities):
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, server_name=host, cafile=authorities
    )
    async with connect(
        address, int(port), configuration=configuration, create_protocol=Client
    ) as client:
        await client.get(host, path)
        sys.stdout.buffer.write(client.status + b"\n" + client.body)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), PATIENCE))
