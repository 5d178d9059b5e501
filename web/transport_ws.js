/** Messages and audio over one WebSocket. */

import { ApiError } from "./api.js";

const PROTOCOL = "agent_tts.v1";
const HEADER_BYTES = 16; // version u8, kind u8, flags u16, context_no u32, first_sample u64; little-endian
const KIND_AUDIO = 1;
const OPEN_TIMEOUT_MS = 8_000;

/**
 * Carries the messages and audio of a session.
 * @typedef {object} Transport
 * @property {"websocket" | "webrtc"} name
 * @property {(message: object) => void} send ignored once the transport is closed
 * @property {() => void} close idempotent; `onclose` does not follow
 * @property {(message: any) => void} onmessage
 * @property {(chunk: Chunk) => void} onaudio never called where the audio is a media track
 * @property {(code: number, reason: string) => void} onclose the other side, or the network, closed it
 *
 * @typedef {{contextNo: number, flags: number, firstSample: number, pcm: Int16Array}} Chunk pcm at 24 kHz, mono
 */

/** @implements {Transport} */
export class WebSocketTransport {
  name = /** @type {const} */ ("websocket");
  onmessage = (/** @type {any} */ _message) => {};
  onaudio = (/** @type {Chunk} */ _chunk) => {};
  onclose = (/** @type {number} */ _code, /** @type {string} */ _reason) => {};
  /** @type {WebSocket} */
  #socket;

  /** @param {WebSocket} socket an open one */
  constructor(socket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.onmessage(JSON.parse(data)) : this.#audio(data));
    socket.onclose = ({ code, reason }) => this.onclose(code, reason);
  }

  /**
   * @param {import("./api.js").Api} api
   * @param {AbortSignal} signal
   * @returns {Promise<WebSocketTransport>}
   */
  static async open(api, signal) {
    const socket = new WebSocket(await api.socketUrl(), PROTOCOL);
    socket.binaryType = "arraybuffer";
    const limit = AbortSignal.any([signal, AbortSignal.timeout(OPEN_TIMEOUT_MS)]);
    const giveUp = () => socket.close();
    limit.addEventListener("abort", giveUp);
    try {
      await new Promise((resolve, reject) => {
        socket.onopen = resolve;
        socket.onclose = ({ code, reason }) => reject(refusal(code, reason));
      });
    } finally {
      limit.removeEventListener("abort", giveUp);
    }
    return new WebSocketTransport(socket);
  }

  /** @param {object} message */
  send(message) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  close() {
    this.#socket.onclose = this.#socket.onmessage = null;
    this.#socket.close(1000);
  }

  /** @param {ArrayBuffer} buffer */
  #audio(buffer) {
    const header = new DataView(buffer, 0, HEADER_BYTES);
    if (header.getUint8(0) !== 1 || header.getUint8(1) !== KIND_AUDIO) return;
    this.onaudio({
      flags: header.getUint16(2, true),
      contextNo: header.getUint32(4, true),
      firstSample: Number(header.getBigUint64(8, true)),
      pcm: new Int16Array(buffer, HEADER_BYTES),
    });
  }
}

/**
 * Why a socket did not open, as far as the browser says.
 * @param {number} code
 * @param {string} reason
 */
function refusal(code, reason) {
  if (code === 1013) return new ApiError(503, "at_capacity", reason || "The node is at capacity.", 2_000);
  if (code === 1008) return new ApiError(401, "unauthorized", reason || "The node asks for a key.");
  if (code === 1012) return new ApiError(503, "draining", reason || "The node is shutting down.");
  return new ApiError(0, "unreachable", "The node does not answer.");
}
