/** The numbers of a turn, shown as text. */

const milliseconds = (/** @type {number} */ ms) => `${Math.round(ms)} ms`;

/** @type {Record<string, (value: number) => string>} */
const FORMATS = {
  serverTtfaMs: (ms) => (ms < 1 ? "< 1 ms" : milliseconds(ms)),
  waitMs: milliseconds,
  clientTtfaMs: milliseconds,
  audibleMs: milliseconds,
  rtf: (rtf) => (rtf < 0.01 ? rtf.toFixed(4) : rtf.toFixed(2)),
  bufferMs: milliseconds,
  underruns: String,
  audioMs: (ms) => `${(ms / 1000).toFixed(1)} s`,
  cancelMs: milliseconds,
};

const NONE = "–";

export class Meters {
  /** What is shown; null where nothing is known yet. @type {Record<string, number | null>} */
  values = {};
  /** @type {Map<string, HTMLElement>} */
  #cells = new Map();

  /** @param {HTMLElement} root holds an element with `data-meter` for each number */
  constructor(root) {
    for (const cell of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-meter]"))) {
      this.#cells.set(/** @type {string} */ (cell.dataset.meter), cell);
    }
    this.reset();
  }

  /** Reset for a new turn, except the time to silence, which is of the stopped turn. */
  reset() {
    for (const name of Object.keys(FORMATS)) {
      if (name !== "cancelMs" || !(name in this.values)) this.set(name, null);
    }
  }

  /**
   * @param {string} name
   * @param {number | null | undefined} value
   */
  set(name, value) {
    this.values[name] = value ?? null;
    const text = value == null ? NONE : FORMATS[name](value);
    const cell = /** @type {HTMLElement} */ (this.#cells.get(name));
    if (cell.textContent !== text) cell.textContent = text;
  }
}
