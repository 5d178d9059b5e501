/** The agent's voice as heard on this device: detects its beginning and its silence. */

import { Probe } from "./probe.js";

const REST_MS = 100; // longer than silences within words
const PAUSE_MS = 400; // longer than pauses between sentences
const MOST_HUSHED_MS = 800; // unmuted after this time even if the agent still speaks

export class AgentSound {
  /** Sound after silence. @type {(at: number) => void} */
  onsound = () => {};
  /** Lasting silence of the track; `at` is its beginning. @type {(at: number) => void} */
  onrest = () => {};
  /** 20 ms of sound, or of a pause in it. @type {(peak: number, brightness: number) => void} */
  oncolumn = () => {};
  /** Whether there was sound, and no lasting silence since. */
  lively = false;
  /** Analyses the played sound. */
  analyser;
  #element;
  #probe;
  #loud = false;
  #changedAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout>} */
  #resting = 0;
  /** @type {ReturnType<typeof setTimeout>} */
  #hushing = 0;

  /**
   * @param {AudioContext} audio
   * @param {MediaStream} stream
   * @param {HTMLAudioElement} element plays it
   */
  constructor(audio, stream, element) {
    this.#element = element;
    element.srcObject = stream;
    element.muted = false;
    // Browsers refuse before a gesture; the call began with one.
    element.play().catch(() => {});
    this.#probe = new Probe(audio, stream);
    this.analyser = this.#probe.analyser;
    this.#probe.onlevel = (loud, at) => this.#level(loud, at);
    this.#probe.oncolumn = (peak, brightness) => this.sounding && this.oncolumn(peak, brightness);
  }

  /** Whether it speaks, or paused for less than PAUSE_MS. */
  get sounding() {
    return this.#loud || performance.now() - this.#changedAt < PAUSE_MS;
  }

  /** Mute at once, until the track itself is silent: drops the sound that is still on its way. */
  hush() {
    this.#element.muted = true;
    clearTimeout(this.#hushing);
    this.#hushing = setTimeout(() => (this.#element.muted = false), MOST_HUSHED_MS);
  }

  close() {
    clearTimeout(this.#resting);
    clearTimeout(this.#hushing);
    this.#probe.close();
    this.#element.srcObject = null;
  }

  /**
   * @param {boolean} loud
   * @param {number} at
   */
  #level(loud, at) {
    this.#loud = loud;
    this.#changedAt = at;
    clearTimeout(this.#resting);
    if (!loud) {
      this.#resting = setTimeout(() => this.#rest(at), REST_MS);
    } else if (!this.lively) {
      this.lively = true;
      this.onsound(at);
    }
  }

  /** @param {number} at */
  #rest(at) {
    this.lively = false;
    clearTimeout(this.#hushing);
    this.#element.muted = false;
    this.onrest(at);
  }
}
