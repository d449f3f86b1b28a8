from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.executor.channel import Channel
from gpu_runner.frames import Done, Reported, Run, Stop, ToExecutor, decode_from_executor
from headrace.link.stream import pack


def a_run(job_id: str, size: int = 10) -> Run:
    return Run(job_id, "echo", b"x" * size, 1, 1.5, 2.5)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        yield Channel(ours), theirs


FRAMES: list[ToExecutor] = [a_run("a"), Stop("a", 1), a_run("b", 70_000), Stop("b", 1)]


@given(st.data())
def test_frames_arrive_whole_however_they_are_cut(data: st.DataObject) -> None:
    frames = data.draw(st.lists(st.sampled_from(FRAMES), max_size=5))
    sent = b"".join(map(pack, frames))
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=6).map(sorted))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)

        def send() -> None:
            for begin, end in pairwise([0, *cuts, len(sent)]):
                theirs.sendall(sent[begin:end])
            theirs.close()

        sender = threading.Thread(target=send)
        sender.start()
        assert [channel.receive() for _ in frames] == frames
        sender.join()
        with pytest.raises(EOFError):
            channel.receive()


def test_stops_takes_the_stops_and_leaves_the_rest(pair: tuple[Channel, socket.socket]) -> None:
    channel, peer = pair
    assert channel.stops() == []  # doesn't wait
    for frame in (a_run("a"), Stop("x", 1), a_run("b"), Stop("y", 1), Stop("x", 1)):
        peer.sendall(pack(frame))
    assert channel.stops() == [Stop("x", 1), Stop("y", 1), Stop("x", 1)]
    assert channel.stops() == []
    assert [channel.receive(), channel.receive()] == [a_run("a"), a_run("b")]


def test_half_a_stop_is_none_yet(pair: tuple[Channel, socket.socket]) -> None:
    channel, peer = pair
    data = pack(Stop("job", 1))
    for byte in data[:-1]:
        peer.sendall(bytes([byte]))
        assert channel.stops() == []
    peer.sendall(data[-1:])
    assert channel.stops() == [Stop("job", 1)]


@pytest.mark.parametrize("look", [Channel.receive, Channel.stops])
def test_the_supervisors_end_is_the_end(pair: tuple[Channel, socket.socket], look: object) -> None:
    channel, peer = pair
    peer.sendall(pack(Stop("job", 1))[:3])
    peer.close()
    with pytest.raises(EOFError):
        look(channel)  # type: ignore[operator]


def test_what_came_before_the_end_is_still_received(pair: tuple[Channel, socket.socket]) -> None:
    channel, peer = pair
    peer.sendall(pack(a_run("a")) + pack(a_run("b")))
    peer.close()
    assert [channel.receive(), channel.receive()] == [a_run("a"), a_run("b")]


def test_answers_to_a_supervisor_that_is_gone_are_the_end_too(pair: tuple[Channel, socket.socket]) -> None:
    channel, peer = pair
    peer.close()
    with pytest.raises(EOFError):
        channel.send(Done("job", b"{}", 0.1))


def test_what_is_held_leaves_together_and_before_what_is_sent(pair: tuple[Channel, socket.socket]) -> None:
    channel, peer = pair
    frames = [Done(job_id, b"", 0.0) for job_id in "abcd"]
    assert [channel.hold(frame) for frame in frames[:2]] == [True, False]
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recv(1000)
    channel.send(frames[2])
    assert peer.recv(1000) == b"".join(map(pack, frames[:3]))
    channel.flush()
    with pytest.raises(BlockingIOError):
        peer.recv(1000)
    assert channel.hold(frames[3])
    channel.flush()
    assert peer.recv(1000) == pack(frames[3])


def test_who_is_interrupted_before_sending_leaves_what_is_held(pair: tuple[Channel, socket.socket]) -> None:
    channel, peer = pair
    held, sent = Done("held", b"", 0.0), Done("sent", b"", 0.0)
    channel.hold(held)

    def interrupt(_: object, event: str, called: object) -> None:
        if event == "c_return" and getattr(called, "__name__", "") == "join":
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            channel.send(sent)
    finally:
        sys.setprofile(None)
    channel.flush()
    assert peer.recv(1000) == pack(held)


def test_frames_of_several_threads_are_not_mixed(pair: tuple[Channel, socket.socket]) -> None:
    channel, peer = pair
    sent = [Reported(f"job-{thread}", 0.5, "x" * 5000) for thread in range(4)]

    def send(frame: Reported) -> None:
        for _ in range(50):
            channel.send(frame)

    threads = [threading.Thread(target=send, args=(frame,)) for frame in sent]
    for thread in threads:
        thread.start()
    received, counts = b"", dict.fromkeys(range(4), 0)
    while sum(counts.values()) < 200:
        received += peer.recv(2**16)
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "big")):
            frame = decode_from_executor(received[4:end])
            counts[sent.index(frame)] += 1  # type: ignore[arg-type]
            received = received[end:]
    assert set(counts.values()) == {50}
    for thread in threads:
        thread.join()
