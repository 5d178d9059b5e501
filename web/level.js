/** The level of the microphone, as a bar and as text. */

import { Probe } from "./probe.js";

const LEAST_DB = -60;
const FALL_DB = 0.4; // in 20 ms, as the agent measures a voice
const TEXT_MS = 250;

export class Level {
  #root;
  #meter;
  #bar;
  #text;
  /** @type {Probe | null} */
  #probe = null;
  #db = LEAST_DB;
  #textAt = 0;

  /** @param {HTMLElement} root holds a meter with a bar in it, and an output; hidden while nothing is measured */
  constructor(root) {
    this.#root = root;
    this.#meter = /** @type {HTMLElement} */ (root.querySelector("[role=meter]"));
    this.#bar = /** @type {HTMLElement} */ (this.#meter.firstElementChild);
    this.#text = /** @type {HTMLElement} */ (root.querySelector("output"));
  }

  /**
   * @param {AudioContext} audio
   * @param {MediaStream} stream of a microphone
   */
  watch(audio, stream) {
    this.rest();
    try {
      this.#probe = new Probe(audio, stream);
    } catch (error) {
      // Firefox refuses a microphone of another sample rate: the call goes on without a meter.
      if (/** @type {Error} */ (error).name === "NotSupportedError") return;
      throw error;
    }
    this.#probe.oncolumn = (peak) => this.#show(20 * Math.log10(Math.max(peak, 1e-6)));
    this.#root.hidden = false;
  }

  /** Mark below which level the agent hears nobody. @param {number} db of full scale */
  mark(db) {
    this.#meter.style.setProperty("--least", `${100 * (1 - Math.max(db, LEAST_DB) / LEAST_DB)}%`);
    this.#meter.title = `The agent hears nobody below ${Math.round(db)} dB.`;
  }

  rest() {
    this.#probe?.close();
    this.#probe = null;
    this.#db = LEAST_DB;
    this.#root.hidden = true;
  }

  /** @param {number} db of full scale */
  #show(db) {
    this.#db = Math.min(0, Math.max(db, this.#db - FALL_DB, LEAST_DB));
    this.#bar.style.inlineSize = `${100 * (1 - this.#db / LEAST_DB)}%`;
    const now = performance.now();
    if (now - this.#textAt < TEXT_MS) return;
    this.#textAt = now;
    const text = this.#db === LEAST_DB ? "silent" : `${Math.round(this.#db)} dB`;
    this.#text.textContent = text;
    this.#meter.setAttribute("aria-valuenow", String(Math.round(this.#db)));
    this.#meter.setAttribute("aria-valuetext", text);
  }
}
