/** A call to the agent over WebRTC: microphone, the agent's voice, and RTVI messages. */

import { ApiError } from "./api.js";
import { stopMicrophone } from "./microphone.js";
import { Rtvi } from "./rtvi.js";
import { aborted, gathered } from "./transport_rtc.js";

const CHANNEL = "chat";
const OPEN_TIMEOUT_MS = 15_000;

export class Call {
  /** @type {(type: string, data: any) => void} */
  onmessage = () => {};
  /** The other side ended the call, or it was lost. */
  onlost = () => {};
  /** The agent's voice. @type {MediaStream} */
  stream;
  /** The microphone; null in a text-only call. @type {MediaStream | null} */
  microphone;
  #peer;
  #channel;
  #rtvi;
  #open = true;
  #leave = () => this.close();

  /**
   * @param {RTCPeerConnection} peer connected
   * @param {RTCDataChannel} channel open
   * @param {Rtvi} rtvi greeted
   * @param {MediaStream | null} microphone
   */
  constructor(peer, channel, rtvi, microphone) {
    this.#peer = peer;
    this.#channel = channel;
    this.#rtvi = rtvi;
    this.microphone = microphone;
    this.stream = new MediaStream(peer.getReceivers().map((receiver) => receiver.track));
    rtvi.onmessage = (type, data) => this.onmessage(type, data);
    channel.onclose = () => this.#lost();
    peer.onconnectionstatechange = () => {
      if (peer.connectionState === "failed" || peer.connectionState === "closed") this.#lost();
    };
    addEventListener("pagehide", this.#leave);
  }

  /**
   * @param {import("./api.js").Api} api
   * @param {RTCIceServer[]} iceServers
   * @param {MediaStream | null} microphone owned by the call; null for a text-only call
   * @param {{voice?: string}} options
   * @param {AbortSignal} signal
   * @returns {Promise<Call>}
   * @throws {ApiError} the call failed
   */
  static async open(api, iceServers, microphone, options, signal) {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(OPEN_TIMEOUT_MS)]);
    const peer = new RTCPeerConnection({ iceServers });
    /** @type {Rtvi | null} */
    let rtvi = null;
    try {
      const channel = peer.createDataChannel(CHANNEL, { ordered: true });
      const opened = new Promise((resolve) => (channel.onopen = resolve));
      // The agent expects one audio transceiver in both directions, with or without a microphone.
      const streams = microphone ? [microphone] : [];
      peer.addTransceiver(microphone?.getAudioTracks()[0] ?? "audio", { direction: "sendrecv", streams });
      await peer.setLocalDescription();
      await gathered(peer);
      const offer = /** @type {RTCSessionDescription} */ (peer.localDescription);
      const { type, sdp } = await api.callAgent(offer, options, limit);
      await peer.setRemoteDescription({ type, sdp });
      await Promise.race([opened, aborted(limit)]);
      rtvi = new Rtvi(channel);
      await Promise.race([greeted(rtvi), aborted(limit)]);
      if (!microphone) rtvi.track(false);
      return new Call(peer, channel, rtvi, microphone);
    } catch (error) {
      rtvi?.close();
      peer.close();
      stopMicrophone(microphone);
      if (signal.aborted || error instanceof ApiError) throw error;
      throw new ApiError(0, "unreachable", "No WebRTC connection to the agent came about.");
    }
  }

  /**
   * What the browser's buffer held back of the agent's voice since the call began: its samples, and the sum of their
   * delays. The delay of now is the difference of two. An ended call holds nothing.
   */
  async buffered() {
    if (!this.#open) return { seconds: 0, samples: 0 };
    const stats = [...(await this.#peer.getReceivers()[0].getStats()).values()];
    const { jitterBufferDelay = 0, jitterBufferEmittedCount = 0 } = stats.find(({ type }) => type === "inbound-rtp") ?? {};
    return { seconds: jitterBufferDelay, samples: jitterBufferEmittedCount };
  }

  get muted() {
    return !this.microphone?.getAudioTracks().some((track) => track.enabled);
  }

  /** A muted microphone sends silence, so that the agent detects the end of a turn. */
  set muted(muted) {
    for (const track of this.microphone?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  /** Add a microphone to a text-only call. @param {MediaStream} microphone owned by the call */
  async listen(microphone) {
    stopMicrophone(this.microphone);
    this.microphone = microphone;
    await this.#peer.getSenders()[0].replaceTrack(microphone.getAudioTracks()[0]);
    this.#rtvi.track(true);
  }

  /** Send a typed turn of the user. @param {string} text */
  write(text) {
    this.#rtvi.write(text);
  }

  /**
   * @param {"voice" | "heard" | "silent"} what
   * @param {object} fields
   */
  tell(what, fields) {
    this.#rtvi.tell(what, fields);
  }

  /** Hang up; idempotent. */
  close() {
    if (!this.#open) return;
    this.#open = false;
    removeEventListener("pagehide", this.#leave);
    this.#rtvi.close();
    this.#channel.onclose = this.#peer.onconnectionstatechange = null;
    this.#peer.close();
    stopMicrophone(this.microphone);
  }

  #lost() {
    if (!this.#open) return;
    this.close();
    this.onlost();
  }
}

/**
 * @param {Rtvi} rtvi
 * @returns {Promise<void>} when the agent has answered
 */
function greeted(rtvi) {
  return new Promise((resolve) => {
    rtvi.onmessage = (type) => type === "bot-ready" && resolve();
    rtvi.ready();
  });
}
