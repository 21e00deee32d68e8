"""Keys and address of one run's control channel."""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq


@dataclass(frozen=True, slots=True)
class Address:
    """What a worker needs to reach the driver. The secret key stays out of logs and reprs."""

    endpoint: str
    server_public: bytes
    client_public: bytes
    client_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The per-run secrets, made anew for each driver."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    client_public: bytes
    client_secret: bytes = field(repr=False)

    @staticmethod
    def make() -> RunKeys:
        return RunKeys(*zmq.curve_keypair(), *zmq.curve_keypair())

    def address(self, endpoint: str) -> Address:
        return Address(endpoint, self.server_public, self.client_public, self.client_secret)


class OnlyKey:
    """Lets in holders of one public key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key
