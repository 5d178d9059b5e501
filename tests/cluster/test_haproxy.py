"""What HAProxy is told, and what is read in its answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent_tts.cluster.directory import NodeAddress
from agent_tts.cluster.haproxy import (
    Callers,
    Server,
    commands,
    complaints,
    configuration,
    new_certificate,
    server_lines,
    servers,
)

# Of HAProxy 2.8.25, without columns that are not read.
ANSWER = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port
3 nodes 1 a 10.0.0.1 2 0 1 8100
3 nodes 2 b ::1 2 8 1 8101
3 nodes 3 c 10.0.0.3 0 1 1 8102
3 nodes 4 d 10.0.0.4 0 8 1 8103

# pxname,svname,qcur,scur,check_status,addr,
nodes,a,0,7,L7OK,10.0.0.1:8100,
nodes,b,0,1,* L7STS,[::1]:8101,
nodes,c,0,0,,10.0.0.3:8102,
nodes,d,0,0,* L4CON,10.0.0.4:8103,

"""
A = Server("a", "10.0.0.1", 8100, "ready", True, "L7OK", 7)
NODE = NodeAddress("a", "10.0.0.1", 8100)


def test_servers_are_read() -> None:
    assert servers(ANSWER) == [
        A,
        Server("b", "::1", 8101, "drain", True, "L7STS", 1),
        Server("c", "10.0.0.3", 8102, "maint", False, "", 0),
        Server("d", "10.0.0.4", 8103, "drain", False, "L4CON", 0),
    ]


@pytest.mark.parametrize(
    "answer", ["", "Permission denied\n\n", ANSWER.replace(",scur", ""), ANSWER.partition("\n\n")[0]]
)
def test_another_answer_is_an_error(answer: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        servers(answer)


@pytest.mark.parametrize(
    ("server", "wanted", "said"),
    [
        ({}, [NODE], []),
        ({}, [dataclasses.replace(NODE, host="::2", port=1)], ["addr ::2 port 1"]),
        ({"state": "drain"}, [NODE], ["state ready"]),
        ({"state": "maint"}, [NODE], ["state ready"]),
        ({}, [], ["state drain"]),
        ({"state": "drain"}, [], []),
        ({"state": "drain", "sessions": 0}, [], []),
        ({"state": "drain", "check": "L4TOUT"}, [], []),
        ({"state": "drain", "sessions": 0, "check": "L4TOUT"}, [], ["state maint"]),
        ({"state": "maint"}, [], ["state drain"]),  # a caller came between
    ],
)
def test_each_step_of_a_server(server: dict[str, Any], wanted: list[NodeAddress], said: list[str]) -> None:
    have = [dataclasses.replace(A, **server)]
    assert commands(have, wanted) == [f"set server nodes/a {words}" for words in said]


def test_what_is_said_once() -> None:
    first, *rest = commands([], [NodeAddress("six", "::1", 8100)])
    assert first.startswith("add server nodes/six [::1]:8100 check ")
    assert rest == ["enable health nodes/six", "set server nodes/six health down", "set server nodes/six state ready"]
    assert commands([A], [NODE], lost=["a", "b"]) == ["shutdown sessions server nodes/a"]
    assert commands([dataclasses.replace(A, sessions=0)], [NODE], lost=["a"]) == []
    assert commands([dataclasses.replace(A, state="maint", sessions=0)], []) == ["del server nodes/a"]
    assert server_lines([NODE]).startswith("  server a 10.0.0.1:8100 check ")


def test_complaints_are_what_is_not_usual() -> None:
    usual = "New server registered.\n\n\n\nIP changed from '1' to '2' by 'stats socket command'\n\nServer deleted.\n\n"
    assert complaints(usual + "Already exists a server with the same name in backend.\n\n") == [
        "Already exists a server with the same name in backend."
    ]
    assert complaints(usual) == []


def test_words_of_others_stay_words() -> None:
    assert "a b" not in configuration("::1 80", Callers("/a b.pem"))
    assert new_certificate("one\n\ntwo\n")[0] == "set ssl cert door.pem <<\none\ntwo\n"  # an empty line is the end
