/** Messages over a WebRTC data channel; the audio is the peer's media track. */

import { ApiError } from "./api.js";
import { Session, messageOf } from "./client.js";

const CHANNEL = "agent_tts.v1";
const GATHER_MS = 1_000; // for ICE candidates; slower ones are left out
const OPEN_TIMEOUT_MS = 10_000;
const PING_MS = 1_000; // the node ends the session after four missing pings, and this side after four missing signs
const MOST_QUIET_PINGS = 4;
const PACKET_MS = 20; // of sound; in speech they come without a pause
const LOOK_MS = 50; // between two looks at them
const DENSE_MS = 125; // packets in two looks so far apart are speech
const SILENT_MS = 200; // without a sign of the node in speech: then it is in doubt. Twice as long after each false alarm
const AGAIN_MS = 500; // between attempts to reach another while it is

/** @typedef {import("./client.js").Transport} Transport */

/** @implements {Transport} */
export class WebRtcTransport {
  onmessage = (/** @type {any} */ _message) => {};
  onaudio = (/** @type {import("./client.js").Packet} */ _packet) => {};
  onclose = (/** @type {number} */ _code, /** @type {string} */ _reason) => {};
  /** The node's voice. @type {MediaStream} */
  stream;
  #api;
  #peer;
  #channel;
  #sessionId;
  /** Its track is to be heard from now on: a context begins. */
  onspeak = () => {};
  /** Nothing comes of the node in the middle of speech; told again and again until something does. */
  ondoubt = (/** @type {boolean} */ _isSilent) => {};
  /** @type {ReturnType<typeof setInterval>} */
  #pings;
  /** Pings since anything came. */
  #quiet = 0;
  /** While contexts are open. @type {ReturnType<typeof setInterval> | undefined} */
  #looks;
  /**
   * Of contexts that are open: how much the node had played of each when so many packets had come (null: not looked yet),
   * and whether its sound has begun.
   * @type {Map<string, {ms: number, packets: number | null, sounds: boolean}>}
   */
  #open = new Map();
  /** Packets that have come; when more were seen, on performance.now's clock; and whether they were speech. */
  #packets = 0;
  #arrivedAt = 0;
  #isSpeech = false;
  #signAt = 0;
  #silentMs = SILENT_MS;
  #isInDoubt = false;
  /** The node drains. */
  #isParting = false;
  #leave = () => this.close();

  /**
   * @param {import("./api.js").Api} api
   * @param {RTCPeerConnection} peer connected
   * @param {RTCDataChannel} channel open
   * @param {string} sessionId
   */
  constructor(api, peer, channel, sessionId) {
    this.#api = api;
    this.#peer = peer;
    this.#channel = channel;
    this.#sessionId = sessionId;
    this.stream = new MediaStream(peer.getReceivers().map((receiver) => receiver.track));
    channel.onmessage = ({ data }) => {
      const message = typeof data === "string" ? messageOf(data) : null;
      if (message) this.#receive(message);
      else this.lose(1002);
    };
    channel.onclose = () => this.lose();
    peer.onconnectionstatechange = () => {
      if (peer.connectionState === "failed" || peer.connectionState === "closed") this.lose();
    };
    this.#pings = setInterval(() => this.#ping(), PING_MS);
    addEventListener("pagehide", this.#leave);
  }

  /**
   * @param {import("./api.js").Api} api
   * @param {AbortSignal} signal
   * @returns {Promise<WebRtcTransport>}
   */
  static async open(api, signal) {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(OPEN_TIMEOUT_MS)]);
    const peer = new RTCPeerConnection({ iceServers: await api.iceServers(limit) });
    let sessionId = "";
    try {
      const channel = peer.createDataChannel(CHANNEL);
      const opened = new Promise((resolve) => (channel.onopen = resolve));
      peer.addTransceiver("audio", { direction: "recvonly" });
      await peer.setLocalDescription();
      await gathered(peer);
      const answer = await api.offer(/** @type {RTCSessionDescription} */ (peer.localDescription), limit);
      sessionId = answer.session_id;
      await peer.setRemoteDescription({ type: answer.type, sdp: answer.sdp });
      await Promise.race([opened, aborted(limit)]);
      return new WebRtcTransport(api, peer, channel, sessionId);
    } catch (error) {
      if (sessionId) await api.hangUp(sessionId);
      peer.close();
      if (signal.aborted || error instanceof ApiError) throw error;
      throw new ApiError(0, "unreachable", "No WebRTC connection to the node came about.");
    }
  }

  /** @param {any} message */
  send(message) {
    if (this.#channel.readyState !== "open") return;
    if (message.type === "context.open") {
      this.#open.set(message.context_id, { ms: 0, packets: null, sounds: false });
      this.#looks ??= setInterval(() => this.#look(), LOOK_MS);
      this.onspeak();
    }
    this.#channel.send(JSON.stringify(message));
  }

  /** What has come of a context: by the node's last word of it, and the packets since. @param {string} contextId */
  heardMs(contextId) {
    const { ms = 0, packets = null } = this.#open.get(contextId) ?? {};
    return ms + PACKET_MS * (this.#packets - (packets ?? this.#packets));
  }

  close() {
    this.ondoubt(false);
    if (!this.#shut()) return;
    // Delete the session before the connection closes; afterwards the node no longer knows it. One that drains may have
    // closed it already.
    if (this.#isParting) this.#peer.close();
    else this.#api.hangUp(this.#sessionId).finally(() => this.#peer.close());
  }

  /** Packets are counted, not time: where this program was held up, what came meanwhile is counted first. */
  async #look() {
    const stats = [...(await this.#peer.getReceivers()[0].getStats()).values()];
    const { packetsReceived = 0 } = stats.find(({ type }) => type === "inbound-rtp") ?? {};
    if (!this.#pings) return;
    const now = performance.now();
    for (const context of this.#open.values()) context.packets ??= packetsReceived;
    if (packetsReceived > this.#packets) {
      this.#isSpeech = now - this.#arrivedAt < DENSE_MS;
      this.#packets = packetsReceived;
      this.#arrivedAt = now;
      this.#sign(now);
    } else if (this.#isSpeech && now - this.#signAt > this.#silentMs && this.#sounds) {
      this.#isInDoubt = true;
      this.ondoubt(true);
    }
  }

  /** Whether packets are due: without speech there may be one in 400 ms. */
  get #sounds() {
    return [...this.#open.values()].some(({ sounds }) => sounds);
  }

  /** The node is there. @param {number} now */
  #sign(now) {
    this.#signAt = now;
    this.#quiet = 0;
    if (!this.#isInDoubt) return;
    this.#isInDoubt = false;
    this.#silentMs *= 2;
    this.ondoubt(false);
  }

  #ping() {
    if (++this.#quiet > MOST_QUIET_PINGS) this.lose();
    else this.send({ type: "ping", t: Math.round(performance.now()) });
  }

  /** @param {any} message */
  #receive(message) {
    this.#sign(performance.now());
    if (message.type === "pong" && this.#open.size) this.#look().then(() => this.#count(message.played ?? {}));
    const context = this.#open.get(message.context_id);
    if (context && message.type === "words" && message.kind === "aligned") context.sounds = true;
    if (message.type === "session.draining" && message.reason !== "full") this.#isParting = true;
    const isEnd = message.type === "context.done" || message.type === "error";
    if (isEnd && this.#open.delete(message.context_id) && !this.#open.size) {
      clearInterval(this.#looks);
      this.#looks = undefined;
    }
    this.onmessage(message);
  }

  /** @param {Record<string, number>} played ms of each context whose sound has begun */
  #count(played) {
    for (const [id, context] of this.#open) Object.assign(context, { ms: played[id] ?? 0, packets: this.#packets });
  }

  /** @param {number} code of a WebSocket's close */
  lose(code = 1006) {
    if (!this.#shut()) return;
    this.#peer.close();
    this.onclose(code, "");
  }

  /** @returns {boolean} whether it was open */
  #shut() {
    if (!this.#pings) return false;
    clearInterval(this.#pings);
    clearInterval(this.#looks);
    this.#pings = 0;
    removeEventListener("pagehide", this.#leave);
    this.#channel.onmessage = this.#channel.onclose = this.#peer.onconnectionstatechange = null;
    return true;
  }
}

/**
 * Dials over WebRTC for a `MovingTransport`. It takes a browser long to see that a peer is gone, and time to connect: when
 * a node falls silent in the middle of speech, another connection is begun at once. If that is there first, the old one is
 * lost; a network that fails for a moment fails for both.
 */
export class WebRtcDialer {
  #api;
  #onspeak;
  /** Whether one was. */
  #isOpen = false;
  /** What is begun while a node is in doubt. @type {{session: Promise<Session | null>, stop: AbortController} | null} */
  #spare = null;

  /**
   * @param {import("./api.js").Api} api
   * @param {(stream: MediaStream) => void} onspeak what is to be heard from now on; the first stream at once
   */
  constructor(api, onspeak) {
    this.#api = api;
    this.#onspeak = onspeak;
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<Session>} greeted; its transport is a `WebRtcTransport`
   */
  async dial(signal) {
    const spare = this.#spare;
    this.#spare = null;
    signal.addEventListener("abort", () => spare?.stop.abort());
    return (await spare?.session) ?? this.#open(signal);
  }

  /** @param {AbortSignal} signal */
  async #open(signal) {
    const transport = await WebRtcTransport.open(this.#api, signal);
    transport.onspeak = () => this.#onspeak(transport.stream);
    if (!this.#isOpen) transport.onspeak();
    this.#isOpen = true;
    transport.ondoubt = (isSilent) => (isSilent ? this.#prepare(transport) : this.#drop());
    const session = new Session(transport);
    await session.greeted(signal);
    return session;
  }

  /** @param {WebRtcTransport} doubtful */
  async #prepare(doubtful) {
    if (this.#spare) return;
    const stop = new AbortController();
    const spare = (this.#spare = { stop, session: this.#open(stop.signal).catch(() => null) });
    const session = await spare.session;
    if (this.#spare !== spare) return;
    if (session) doubtful.lose();
    setTimeout(() => this.#spare === spare && this.#drop(), AGAIN_MS);
  }

  #drop() {
    this.#spare?.stop.abort();
    this.#spare?.session.then((session) => session?.close());
    this.#spare = null;
  }
}

/** Wait for the candidates of a peer that has its local description. @param {RTCPeerConnection} peer */
export async function gathered(peer) {
  if (peer.iceGatheringState === "complete") return;
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, GATHER_MS);
    peer.addEventListener("icegatheringstatechange", () => {
      if (peer.iceGatheringState !== "complete") return;
      clearTimeout(timer);
      resolve(undefined);
    });
  });
}

/**
 * @param {AbortSignal} signal
 * @returns {Promise<never>} rejects with the signal's reason
 */
export function aborted(signal) {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}
