/** HTTP calls to the node that served this page. */

import { ApiError } from "./client.js";

export { ApiError };

const STORED_KEY = "agent_tts.key";
const TIMEOUT_MS = 10_000;
const SPEECH_TIMEOUT_MS = 120_000; // the longest text on a node that keeps up with speech many times
const CLONE_TIMEOUT_MS = 90_000; // a clip takes seconds, after at most four others

/**
 * @typedef {{name: string, languages: string[], description: string, aliases: string[], instructions: boolean}} Voice `instructions`:
 *   it obeys them
 * @typedef {{voices: Voice[], default: string, clones: boolean}} Voices `clones`: voices may be added from a clip
 *
 * @typedef {object} Part of an agent
 * @property {string} kind "none" where it is missing, "builtin" where something simple stands in for it
 * @property {string} name
 * @property {string | null} message why it is missing, in a sentence
 *
 * @typedef {{stt: Part, llm: Part, tts: Part, ice_servers: RTCIceServer[], level_db: number}} Agent
 */

export class Api {
  /** The API key; kept in this tab's session storage only. */
  get key() {
    return sessionStorage.getItem(STORED_KEY);
  }

  set key(value) {
    if (value) sessionStorage.setItem(STORED_KEY, value);
    else sessionStorage.removeItem(STORED_KEY);
  }

  /**
   * Address of a route, wherever the page is mounted.
   * @param {string} path
   */
  url(path) {
    return new URL(path, document.baseURI);
  }

  /** @returns {Promise<Voices>} */
  async voices() {
    return (await this.#call("v1/audio/voices")).json();
  }

  /**
   * Address of the speech socket. With a key, it carries a one-time token: a browser cannot send headers there.
   * @returns {Promise<URL>}
   */
  async socketUrl() {
    const url = this.url("v1/tts/stream");
    url.protocol = url.protocol.replace("http", "ws");
    if (this.key) {
      const { token } = await (await this.#call("v1/tokens", { method: "POST" })).json();
      url.searchParams.set("token", token);
    }
    return url;
  }

  /**
   * STUN and TURN servers that the node names.
   * @param {AbortSignal} signal
   * @returns {Promise<RTCIceServer[]>}
   */
  async iceServers(signal) {
    return (await (await this.#call("v1/rtc/ice", { signal })).json()).iceServers;
  }

  /**
   * @param {RTCSessionDescriptionInit} offer
   * @param {AbortSignal} signal
   * @returns {Promise<RTCSessionDescriptionInit & {session_id: string}>}
   */
  async offer(offer, signal) {
    // In silence the node sends a packet each 400 ms to one who prefers that, in place of 20.
    const sdp = offer.sdp?.replace("useinbandfec=1", "useinbandfec=1;usedtx=1");
    return (await this.#call("v1/rtc/offer", { json: { sdp, type: offer.type }, signal })).json();
  }

  /**
   * End a WebRTC session, also while the page unloads. Errors are ignored: a node that is gone has no session.
   * @param {string} sessionId
   */
  async hangUp(sessionId) {
    await this.#call(`v1/rtc/${encodeURIComponent(sessionId)}`, { method: "DELETE", keepalive: true }).catch(() => {});
  }

  /** Whether this page's key is an operator's, who may read the node's metrics. @returns {Promise<boolean>} */
  async operates() {
    return (await (await this.#call("api/operator")).json()).operator;
  }

  /** The node's metrics, in Prometheus' text format. */
  async metrics() {
    return (await this.#call("metrics")).text();
  }

  /** The node's agent; null where the node has none. @returns {Promise<Agent | null>} */
  async agent() {
    return (await this.#call("api/agent")).json();
  }

  /**
   * Call the agent.
   * @param {RTCSessionDescriptionInit} offer
   * @param {{voice?: string}} options
   * @param {AbortSignal} signal
   * @returns {Promise<RTCSessionDescriptionInit & {pc_id: string}>}
   */
  async callAgent(offer, options, signal) {
    const json = { sdp: offer.sdp, type: offer.type, request_data: options };
    return (await this.#call("api/agent/offer", { json, signal })).json();
  }

  /**
   * Speech as a file.
   * @param {import("./speaker.js").Options & {input: string, response_format?: "wav" | "mp3"}} options
   * @param {AbortSignal} signal
   * @returns {Promise<Blob>} audio/wav where nothing else is asked for
   */
  async speech(options, signal) {
    const json = { model: "tts-1", response_format: "wav", ...options };
    return (await this.#call("v1/audio/speech", { json, signal }, SPEECH_TIMEOUT_MS)).blob();
  }

  /**
   * Clone the voice of a clip's speaker.
   * @param {{name: string, clip: Blob, consent: string, transcript: string}} voice `transcript` may be empty
   */
  async addVoice({ name, clip, consent, transcript }) {
    const body = new FormData();
    body.set("name", name);
    body.set("consent", consent);
    if (transcript) body.set("ref_text", transcript);
    body.set("audio_sample", clip, "recording");
    await this.#call("v1/audio/voices", { method: "POST", body }, CLONE_TIMEOUT_MS);
  }

  /**
   * @param {string} path
   * @param {RequestInit & {json?: object}} init `json` is posted
   * @param {number} timeoutMs
   * @returns {Promise<Response>} with an OK status
   */
  async #call(path, { json, ...init } = {}, timeoutMs = TIMEOUT_MS) {
    /** @type {Record<string, string>} */
    const headers = json ? { "Content-Type": "application/json" } : {};
    if (json) init = { ...init, method: "POST", body: JSON.stringify(json) };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    const timeout = AbortSignal.timeout(timeoutMs);
    const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
    let response;
    try {
      response = await fetch(this.url(path), { ...init, headers, signal });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new ApiError(0, "unreachable", "The node does not answer.");
    }
    if (!response.ok) throw await errorOf(response);
    return response;
  }
}

/**
 * @param {Response} response
 * @returns {Promise<ApiError>}
 */
async function errorOf(response) {
  const body = await response.json().catch(() => null);
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  const code = body?.error?.code ?? (response.status === 401 ? "unauthorized" : "internal");
  const message = body?.error?.message ?? `The node answered with status ${response.status}.`;
  return new ApiError(response.status, code, message, Number.isFinite(seconds) ? seconds * 1000 : null);
}
