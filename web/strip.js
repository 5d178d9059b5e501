/** The agent's voice on the waveform: one strip for each turn. */

import { Wave } from "./wave.js";

const COLUMN_MS = 20;

export class Strip {
  #wave;
  /** Turn of the current strip, and whether the strip was cut. */
  #turn = 0;
  #cut = false;
  /** The turn that sounds now. @type {import("./conversation.js").Turn | null} */
  #spoken = null;
  #playedMs = 0;

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#wave = new Wave(canvas);
  }

  /** @param {import("./conversation.js").Turn | null} spoken the agent's last turn */
  follow(spoken) {
    this.#spoken = spoken;
    if (!spoken?.cut || this.#cut || spoken.id !== this.#turn) return;
    this.#cut = true;
    this.#wave.cut();
  }

  /**
   * The next 20 ms.
   * @param {number} peak
   * @param {number} brightness zero crossings a sample
   */
  hear(peak, brightness) {
    const turn = this.#spoken;
    if (!turn || turn.cut) return;
    if (turn.id !== this.#turn || this.#cut) {
      this.#turn = turn.id;
      this.#cut = false;
      this.#playedMs = 0;
      this.#wave.begin();
    }
    this.#wave.hear(peak, brightness);
    this.#wave.seek((this.#playedMs += COLUMN_MS));
  }

  rest() {
    this.#wave.rest();
  }

  recolour() {
    this.#wave.recolour();
  }
}
