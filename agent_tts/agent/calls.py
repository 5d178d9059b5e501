"""The calls of a node: admission, one task for each, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiortc.sdp import candidate_from_sdp
from loguru import logger
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.processors.frameworks.rtvi.models import ServerMessage
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
from pipecat.transports.smallwebrtc.transport import SmallWebRTCTransport

from agent_tts.agent.call import LEFT_S, Build, Call, Gone, run
from agent_tts.agent.completions import ChatCompletions
from agent_tts.agent.fillers import Fillers
from agent_tts.agent.llm import LanguageModel
from agent_tts.agent.stt import SpeechToText
from agent_tts.agent.turns import AgentMetrics, Tell, Turns
from agent_tts.agent.wording import APOLOGIES, FILLERS, phrase
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import BadMessage, Draining, Internal, SpeechError
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.ipc.front_messages import AddCandidates, BeginCall
from agent_tts.options import SpeechOptions
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.access.guard import Client
from agent_tts.serve.access.supervisor_client import NO_SESSION
from agent_tts.serve.node import Aside, Node
from agent_tts.serve.transports import ice, sdp
from agent_tts.serve.transports.rtc_guard import PeerGuard

CONNECT_S = 15.0  # from the answer until the caller is connected
SILENCE_S = 1.0  # to come back after Pipecat calls the connection lost (3 s without a ping)
CLOSE_S = 2.0  # for aiortc to close a connection
BEGIN_WORK_S = 0.02  # on the event loop, to build a pipeline
MAX_MESSAGE = 8_192  # bytes of a message of a caller, who types
WORK_PER_KIB = 64  # of such messages: Pipecat begins an answer to each at once


@dataclass(slots=True)
class _WebRTCCall:
    connection: SmallWebRTCConnection
    client: Client
    task: asyncio.Task[None]  # runs and ends the call
    candidates: int = 0  # that it was sent after its offer; a message without one counts, too


class Calls:
    """Owns every call of a node; each call is one task, whose end closes all of it."""

    def __init__(self, node: Node, stt: SpeechToText, llm: LanguageModel, build: Build) -> None:
        self._node = node
        self._settings = node.settings.agent
        self._stt = stt
        self.llm = llm
        self._build = build
        self._metrics = AgentMetrics(node.metrics.registry)
        # Held while a pipeline is built: models are loaded, and each thread that works keeps the event loop waiting.
        self._building = Aside(1)
        # Calls that run in tasks of their own, and what belongs to each.
        self._tasks: dict[asyncio.Task[None], contextlib.AsyncExitStack] = {}
        # Those of Pipecat's clients, by session id, which the caller gets as `pc_id`.
        self._peers: dict[str, _WebRTCCall] = {}

    # ------------------------------------------------------------ WebRTC

    async def offer(self, call: BeginCall) -> dict[str, str]:
        """Begin a call: an answer with the node's candidates, as Pipecat's clients want it. Raises SpeechError."""
        offer, client = sdp.read_offer(call.sdp, microphone=True), Client(call.key_id, call.token)
        last = self._peers.get(call.instead or "")
        if last is not None and last.client.key_id == client.key_id:
            await self._end(last.task)
        async with contextlib.AsyncExitStack() as resources:
            owner = await resources.enter_async_context(self.admitted("webrtc", client))
            connection = SmallWebRTCConnection(ice_servers=ice.servers(self._node.settings))
            session_id = self._node.session_id()
            resources.callback(self._peers.pop, session_id, None)
            longest = min(self._node.settings.limits.message_bytes, MAX_MESSAGE)
            flow = Flow(self._node.fair_queue.share(client.key_id))
            guard = PeerGuard(connection.pc, self._node.metrics, flow, longest, WORK_PER_KIB)
            resources.push_async_callback(guard.close, f"call {session_id}", connection.disconnect, CLOSE_S)
            style = self._style(call.voice, call.language, call.instructions)
            self._node.service.resolve(style)
            try:
                async with asyncio.timeout(self._node.settings.timeouts.handshake_s):
                    await connection.initialize(offer.sdp, "offer")
            except TimeoutError:
                raise Internal("the answer to the offer took too long") from None
            answer = connection.get_answer()
            if answer is None:
                raise BadMessage("the offer cannot be answered")
            params = TransportParams(audio_in_enabled=True, audio_out_enabled=True, audio_out_10ms_chunks=2)
            transport = SmallWebRTCTransport(connection, params)

            def tell(data: dict[str, Any]) -> None:
                connection.send_app_message(ServerMessage(data=data).model_dump())

            live = partial(self._run, transport, style, owner, SAMPLE_RATE, _presence(connection, guard), tell)
            task = self.own(f"call {session_id}", live, resources, transport, connection)
            self._peers[session_id] = _WebRTCCall(connection, client, task)
        return {"sdp": offer.answer(answer["sdp"]), "type": "answer", "pc_id": session_id}

    async def candidates(self, question: AddCandidates) -> None:
        """Take candidates that a caller found later.

        Raises:
            BadMessage: there is no such call, it has `MAX_CANDIDATES`, or one is not a candidate.
        """
        peer = self._peers.get(question.session_id)
        if peer is None or peer.client.key_id != question.key_id:
            raise BadMessage(NO_SESSION)
        peer.candidates += max(1, len(question.candidates))
        if peer.candidates > sdp.MAX_CANDIDATES:
            raise BadMessage(f"a call takes at most {sdp.MAX_CANDIDATES} candidates after its offer")
        # An empty line is the end of candidates.
        lines = [each.line and sdp.read_candidate(each.line.removeprefix("candidate:")) for each in question.candidates]
        for line, candidate in zip(lines, question.candidates, strict=True):
            if line:
                found = candidate_from_sdp(line)
                found.sdpMid, found.sdpMLineIndex = candidate.mid, candidate.index
                await peer.connection.add_ice_candidate(found)

    # ------------------------------------------------------------ any transport

    def own(
        self, name: str, live: Callable[[], Awaitable[None]], resources: contextlib.AsyncExitStack, *cyclic: object
    ) -> asyncio.Task[None]:
        """Have a call live in a task, which closes all of `resources` in the end.

        Args:
            cyclic: what holds itself in cycles, and FFmpeg's threads: see `call._dismantle`.
        """
        for one in cyclic:
            resources.callback(asyncio.get_running_loop().call_later, LEFT_S, vars(one).clear)
        owned = resources.pop_all()

        async def run() -> None:
            async with owned:
                try:
                    await live()
                except SpeechError as error:
                    logger.info("agent: {} cannot begin: {}", name, error.message)
                except Exception:  # noqa: BLE001 - a failed call ends itself alone
                    logger.exception("agent: {} failed", name)

        task = asyncio.create_task(run(), name=name)
        self._tasks[task] = owned
        task.add_done_callback(self._tasks.pop)
        return task

    async def close(self) -> None:
        """End every call that has a task, and wait until all of it is closed."""
        await self._end(*self._tasks)

    async def _end(self, *tasks: asyncio.Task[None]) -> None:
        owned = [self._tasks[task] for task in tasks if task in self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for each in owned:
            await each.aclose()  # a task that was cancelled before its first step closed nothing

    @property
    def deaf(self) -> str | None:
        """Why a call that begins now hears no speech; None if it does."""
        status = self._stt.status
        return (status.message or "There is no speech recognition.") if status.kind == "none" else None

    async def converse(
        self, transport_name: str, transport: BaseTransport, out_rate: int, client: Client, gone: Gone
    ) -> None:
        """Run a call over another transport of Pipecat's until it ends. Cancelling it ends the call.

        Args:
            transport_name: its label in the metrics.
            out_rate: sample rate of the output, Hz.
            gone: the reason why the call must end now, or None.
        Raises:
            AtCapacity, Draining: no call may begin now.
        """
        async with self.admitted(transport_name, client) as owner:
            await self._run(transport, self._style(), owner, out_rate, gone, None)

    @contextlib.asynccontextmanager
    async def admitted(self, transport_name: str, client: Client) -> AsyncIterator[int]:
        """Count one more call during the block; yields its owner. Raises `AtCapacity` and `Draining`."""
        if self._node.service.draining:
            raise Draining
        await Flow(self._node.fair_queue.share(client.key_id)).wait(BEGIN_WORK_S)
        permit = await self._node.guard.admit(client, "calls")
        with permit as owner, self._metrics.calls.labels(transport_name).track_inprogress():
            yield owner

    def _style(
        self, voice: str | None = None, language: str | None = None, instructions: str | None = None
    ) -> SpeechOptions:
        """How a call speaks; None is the node's choice."""
        return SpeechOptions(voice or self._settings.voice, language or self._settings.language or "auto", instructions)

    def _phrase(self, tts: AgentTTSService, known: Mapping[str, str], own: Mapping[str, str]) -> str:
        """What the agent says of itself, in the language that is spoken now."""
        session = tts.session
        routing = self._node.service.routing
        try:
            found = routing.resolve(SpeechOptions(session["voice"], session["language"] or "auto"))
        except SpeechError:  # the voice was deleted since
            return phrase(known, own, ())
        codes = next((voice.languages for voice in routing.voices() if voice.name == found.voice), ())
        if found.options.language != "auto":
            codes = (found.options.language,)
        elif self._settings.stt.language in codes:  # a voice of many languages answers in the user's
            codes = (self._settings.stt.language,)
        return phrase(known, own, codes)

    async def _run(
        self, transport: BaseTransport, style: SpeechOptions, owner: int, out_rate: int, gone: Gone, tell: Tell | None
    ) -> None:
        """Run a call until it ends; `tell` sends messages to its page, and is None without one."""
        call = self.parts(await self.llm.service(), transport, owner, style, tell)
        if isinstance(call.llm, ChatCompletions):
            call.llm.tts = call.tts
            call.llm.apology = partial(self._phrase, call.tts, APOLOGIES, self._settings.llm.apologies)
        pipeline = await self._building(self._build, call)
        await run(call, pipeline, out_rate, gone, page=tell is not None, idle_s=self._settings.idle_s)

    def parts(
        self,
        llm: FrameProcessor,
        transport: BaseTransport,
        owner: int,
        style: SpeechOptions | None = None,
        tell: Tell | None = None,
    ) -> Call:
        """What a call consists of."""
        style = style or self._style()
        voice = AgentTTSService.Settings(voice=style.voice, language=style.language, instructions=style.instructions)
        tts = AgentTTSService(speech=self._node.service, metrics=self._node.metrics, owner=owner, settings=voice)
        tts.on_prepared = lambda outcome, seconds: self._metrics.early_speech.labels(outcome).inc(seconds)
        after_s = self._settings.llm.filler_s
        filler = partial(self._phrase, tts, FILLERS, self._settings.llm.fillers)
        call_id = secrets.token_hex(4)
        return Call(
            id=call_id,
            settings=self._settings,
            transport=transport,
            stt=self._stt.service(),
            llm=llm,
            fillers=None if after_s is None else Fillers(filler, after_s),
            tts=tts,
            turns=Turns(call_id, self._metrics, tell or (lambda _: None)),
        )


def _presence(connection: SmallWebRTCConnection, guard: PeerGuard) -> Gone:
    """Gives a function that says why a call over WebRTC must end; None while it may go on."""
    clock = asyncio.get_running_loop().time
    due = clock() + CONNECT_S  # for the caller to be connected (again)

    def gone() -> str | None:
        nonlocal due
        if guard.fault is not None:
            return guard.fault
        if connection.pc.connectionState in ("closed", "failed"):
            return "the caller has hung up"
        if connection.is_connected():
            due = clock() + SILENCE_S
        return "the caller is gone" if clock() > due else None

    return gone
