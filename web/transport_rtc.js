/** Messages over a WebRTC data channel; the audio is the peer's media track. */

import { ApiError } from "./api.js";
import { messageOf } from "./client.js";

const CHANNEL = "agent_tts.v1";
const GATHER_MS = 1_000; // for ICE candidates; slower ones are left out
const OPEN_TIMEOUT_MS = 10_000;
const PING_MS = 1_000; // the node ends the session after four missing pings

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
  /** @type {ReturnType<typeof setInterval>} */
  #pings;
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
      if (message) this.onmessage(message);
      else this.#lost(1002);
    };
    channel.onclose = () => this.#lost();
    peer.onconnectionstatechange = () => {
      if (peer.connectionState === "failed" || peer.connectionState === "closed") this.#lost();
    };
    this.#pings = setInterval(() => this.send({ type: "ping", t: Math.round(performance.now()) }), PING_MS);
    addEventListener("pagehide", this.#leave);
  }

  /**
   * @param {import("./api.js").Api} api
   * @param {AbortSignal} signal
   * @returns {Promise<WebRtcTransport>}
   */
  static async open(api, signal) {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(OPEN_TIMEOUT_MS)]);
    const peer = new RTCPeerConnection({ iceServers: await api.iceServers() });
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

  /** @param {object} message */
  send(message) {
    if (this.#channel.readyState === "open") this.#channel.send(JSON.stringify(message));
  }

  close() {
    // Delete the session before the connection closes; afterwards the node no longer knows it.
    if (this.#shut()) this.#api.hangUp(this.#sessionId).finally(() => this.#peer.close());
  }

  /** @param {number} code of a WebSocket's close */
  #lost(code = 1006) {
    if (!this.#shut()) return;
    this.#peer.close();
    this.onclose(code, "");
  }

  /** @returns {boolean} whether it was open */
  #shut() {
    if (!this.#pings) return false;
    clearInterval(this.#pings);
    this.#pings = 0;
    removeEventListener("pagehide", this.#leave);
    this.#channel.onmessage = this.#channel.onclose = this.#peer.onconnectionstatechange = null;
    return true;
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
