/** A text that arrives token by token, as an LLM writes it. */

import { UNSPACED } from "./scripts.js";

// Words with their leading space, long words in pieces, punctuation and every character of a script without spaces by
// itself.
const LETTER = String.raw`\p{L}\p{M}\p{N}`;
const TOKEN = new RegExp(String.raw`\s*(?:${UNSPACED}\p{M}*|[${LETTER}]{1,7}|[^\s${LETTER}]{1,3})|\s+`, "gu");

/**
 * @param {string} text
 * @returns {string[]} pieces that join to the text
 */
export function tokens(text) {
  return text.match(TOKEN) ?? [];
}

export class Typing {
  #tokens;
  #write;
  #finish;
  #rate;
  /** When the next token is due, on performance.now's clock. */
  #due = 0;
  /** @type {ReturnType<typeof setTimeout>} */
  #timer = 0;

  /**
   * @param {string} text
   * @param {() => number} rate tokens per second, asked before each token
   * @param {(token: string) => void} write
   * @param {() => void} finish called after the last token, unless stopped
   */
  constructor(text, rate, write, finish) {
    this.#tokens = tokens(text);
    this.#rate = rate;
    this.#write = write;
    this.#finish = finish;
  }

  start() {
    this.#due = performance.now();
    this.#step();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#tokens.length = 0;
  }

  /** Write all tokens that are due, also after a late timer (a hidden tab). */
  #step() {
    while (this.#due <= performance.now()) {
      const token = this.#tokens.shift();
      if (token === undefined) return this.#finish();
      this.#write(token);
      this.#due += 1000 / this.#rate();
    }
    this.#timer = setTimeout(() => this.#step(), this.#due - performance.now());
  }
}
