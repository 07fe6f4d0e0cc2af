"""Messages over a socket or pipe: four bytes of length, then JSON.

Runs inside the sandbox's own processes: only the standard library may be imported here.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

Read = Callable[[int], bytes]
LENGTH = struct.Struct(">I")
LARGEST = 1 << 28  # bytes of one message between trusted sides
LARGEST_PLAIN = 1 << 16  # of one value that the trainer itself reads
_encoder = json.JSONEncoder(separators=(",", ":"))


class ConnectionClosed(Exception):
    """The other side is gone, or talks nonsense."""


def packed(message: Any) -> bytes:
    """A message as bytes."""
    text = _encoder.encode(message).encode()
    return LENGTH.pack(len(text)) + text


def send(descriptor: int, message: Any) -> None:
    """Send a message."""
    send_bytes(descriptor, packed(message))


def send_bytes(descriptor: int, data: bytes) -> None:
    """Send all of the bytes, or `ConnectionClosed`."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        raise ConnectionClosed(str(error)) from None


def receive(descriptor: int, largest: int = LARGEST) -> Any:
    """The next message, or `ConnectionClosed`; nothing beyond the message is read."""
    return received(functools.partial(os.read, descriptor), largest)


def received(read: Read, largest: int = LARGEST) -> Any:
    """The next message from whatever reads at most so many bytes, b"" where the other side is gone."""
    (length,) = LENGTH.unpack(_exactly(read, LENGTH.size))
    if length > largest:
        raise ConnectionClosed(f"a message of {length} bytes, more than {largest}")
    try:
        return json.loads(_exactly(read, length))
    except (ValueError, RecursionError):
        raise ConnectionClosed("not a message") from None


def messages(data: bytes, largest: int = LARGEST) -> Iterator[dict[str, Any]]:
    """The messages of what may have been cut short, and may be anything, up to the first that is none."""
    end = 0
    while len(data) >= end + LENGTH.size:
        (length,) = LENGTH.unpack_from(data, end)
        end += LENGTH.size + length
        if length >= largest or len(data) < end:
            return
        try:
            message = json.loads(data[end - length : end])
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        yield message


def receive_with_descriptors(descriptor: int, most: int) -> tuple[Any, list[int]]:
    """The next message of a socket, and the descriptors that came with it."""
    connection = socket.socket(fileno=descriptor)
    try:
        start, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, most)
    except OSError as error:
        raise ConnectionClosed(str(error)) from None
    finally:
        connection.detach()
    if len(start) < LENGTH.size:
        raise ConnectionClosed("the other side is gone")
    try:
        read = functools.partial(os.read, descriptor)
        return json.loads(_exactly(read, LENGTH.unpack(start)[0])), list(descriptors)
    except ValueError:
        raise ConnectionClosed("not a message") from None


def _exactly(read: Read, count: int) -> bytes:
    pieces = []
    while count:
        try:
            piece = read(min(count, 1 << 20))
        except OSError as error:
            raise ConnectionClosed(str(error)) from None
        if not piece:
            raise ConnectionClosed("the other side is gone")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def file_with(data: bytes) -> int:
    """A descriptor of a nameless file with this content, at its beginning."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stdin")
    else:
        import tempfile

        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file
