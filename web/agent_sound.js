/** The agent's voice as heard on this device: its beginnings, and silence when it is interrupted. */

import { latencyMs } from "./audio.js";
import { Probe } from "./probe.js";

const REST_MS = 100; // longer than silences within words
const PAUSE_MS = 400; // longer than pauses between sentences
const TAIL_MS = 80; // of sound that the agent had sent ahead when it was interrupted
const MOST_HUSHED_MS = 1_000; // unmuted after this time even if the agent says nothing of an interruption

export class AgentSound {
  /** Sound is heard after silence. @type {(at: number) => void} */
  onsound = () => {};
  /** 20 ms of sound, or of a pause in it. @type {(peak: number, brightness: number) => void} */
  oncolumn = () => {};
  /** Whether there was sound, and no lasting silence since. */
  lively = false;
  /** Analyses the sound that arrives. */
  analyser;
  #audio;
  #element;
  #call;
  #probe;
  #loud = false;
  #changedAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout>} */
  #resting = 0;
  /** Ends the mute. @type {ReturnType<typeof setTimeout>} */
  #hushing = 0;
  /** Interruptions so far. */
  #hushes = 0;

  /**
   * @param {AudioContext} audio
   * @param {import("./call.js").Call} call
   * @param {HTMLAudioElement} element plays it
   */
  constructor(audio, call, element) {
    this.#audio = audio;
    this.#call = call;
    this.#element = element;
    element.srcObject = call.stream;
    element.muted = false;
    // Browsers refuse before a gesture; the call began with one.
    element.play().catch(() => {});
    this.#probe = new Probe(audio, call.stream);
    this.analyser = this.#probe.analyser;
    this.#probe.onlevel = (loud, at) => this.#level(loud, at);
    this.#probe.oncolumn = (peak, brightness) => this.sounding && this.oncolumn(peak, brightness);
  }

  /** Whether it is heard, or paused for less than PAUSE_MS. */
  get sounding() {
    return !this.#element.muted && (this.#loud || performance.now() - this.#changedAt < PAUSE_MS);
  }

  /**
   * Mute at once, until `release`.
   * @returns {number} when the mute is heard, on performance.now's clock
   */
  hush() {
    this.#element.muted = true;
    this.lively = false;
    this.#hushes++;
    clearTimeout(this.#resting);
    this.#unmuteIn(MOST_HUSHED_MS);
    return performance.now() + latencyMs(this.#audio);
  }

  /** The agent has stopped: unmute once what it had sent has passed. Its next answer may follow at once. */
  async release() {
    if (!this.#element.muted) return;
    const hushes = this.#hushes;
    const before = await this.#call.buffered();
    await new Promise((resolve) => setTimeout(resolve, TAIL_MS));
    const after = await this.#call.buffered();
    if (hushes !== this.#hushes) return;
    const bufferMs = (1000 * (after.seconds - before.seconds)) / (after.samples - before.samples);
    this.#unmuteIn(Math.min(bufferMs || 0, MOST_HUSHED_MS));
  }

  close() {
    this.#hushes++;
    clearTimeout(this.#resting);
    clearTimeout(this.#hushing);
    this.#probe.close();
    this.#element.srcObject = null;
  }

  /** @param {number} ms */
  #unmuteIn(ms) {
    clearTimeout(this.#hushing);
    this.#hushing = setTimeout(() => {
      this.#element.muted = false;
      if (this.#loud) this.#hear(performance.now());
    }, ms);
  }

  /**
   * @param {boolean} loud
   * @param {number} at
   */
  #level(loud, at) {
    this.#loud = loud;
    this.#changedAt = at;
    clearTimeout(this.#resting);
    if (!loud) this.#resting = setTimeout(() => (this.lively = false), REST_MS);
    else if (!this.#element.muted) this.#hear(at);
  }

  /** @param {number} at */
  #hear(at) {
    if (this.lively) return;
    this.lively = true;
    this.onsound(at);
  }
}
