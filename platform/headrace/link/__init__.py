"""The direct link between a gateway and a runner: one connection, multiplexed frames.

`frames` says what is said, `stream` moves frames over any byte stream, `handshake` proves both sides,
`address` names where a runner listens. `docs/link-protocol.md` describes the whole.
"""
