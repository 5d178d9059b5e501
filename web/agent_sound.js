/** The agent's voice as it is heard here: when it begins, and when it is silent. */

import { Probe } from "./probe.js";

const REST_MS = 100; // speech has shorter silences in it
const PAUSE_MS = 400; // and sentences have longer ones between them
const MOST_HUSHED_MS = 800; // an agent that goes on regardless is heard again

export class AgentSound {
  /** Sound after a silence. @type {(at: number) => void} */
  onsound = () => {};
  /** Silence of the track that lasts, and when it began. @type {(at: number) => void} */
  onrest = () => {};
  /** 20 ms of sound, or of a pause in it. @type {(peak: number, brightness: number) => void} */
  oncolumn = () => {};
  /** Whether there was sound, and no lasting silence since. */
  lively = false;
  /** Of what is heard. */
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
    // Before a gesture the browser refuses; the call was begun with one.
    element.play().catch(() => {});
    this.#probe = new Probe(audio, stream);
    this.analyser = this.#probe.analyser;
    this.#probe.onlevel = (loud, at) => this.#level(loud, at);
    this.#probe.oncolumn = (peak, brightness) => this.sounding && this.oncolumn(peak, brightness);
  }

  /** Whether it speaks, or has only just paused. */
  get sounding() {
    return this.#loud || performance.now() - this.#changedAt < PAUSE_MS;
  }

  /** Silent at once, until the track is: what is on its way goes by unheard. */
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
