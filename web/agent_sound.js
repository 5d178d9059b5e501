/** The agent's voice as it is heard here: when it begins, and when it is silent. */

import { Probe } from "./probe.js";

const REST_MS = 100; // speech has shorter silences in it
const PAUSE_MS = 400; // and sentences have longer ones between them

export class AgentSound {
  /** Sound after a silence. @type {(at: number) => void} */
  onsound = () => {};
  /** Silence that lasts, and when it began. @type {(at: number) => void} */
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

  /**
   * @param {AudioContext} audio
   * @param {MediaStream} stream
   * @param {HTMLAudioElement} element plays it
   */
  constructor(audio, stream, element) {
    this.#element = element;
    element.srcObject = stream;
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

  close() {
    clearTimeout(this.#resting);
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
    this.onrest(at);
  }
}
