/**
 * A turn's text on the page, in pieces of a state: `coming`, `ready` (its audio has arrived), `now`, `heard`,
 * or, in a cut turn, `cut` (its audio was dropped) or `unsaid` (it has no audio).
 */

import { make } from "./dom.js";
import { follow } from "./follow.js";
import { UNSPACED } from "./scripts.js";

// A piece is a word, or one character of a script that writes no spaces, with the marks and punctuation behind it.
const ALONE = new RegExp(UNSPACED, "u");
const LETTER = /(?![\u0e33\u0eb3])[\p{L}\p{N}]/u;

/**
 * A span of the page and the characters (code points, as the protocol counts) that it shows.
 * @typedef {{element: HTMLSpanElement, start: number, end: number}} Piece
 * @typedef {import("./client.js").Word} Word
 */

export class Transcript {
  /** Times of words, in the order of the text. @type {Word[]} */
  words = [];
  text = "";
  /** Characters heard so far. */
  heardChars = 0;
  /** Whether the turn was cut. */
  cut = false;
  #element;
  #length = 0;
  #readyChars = 0;
  /** @type {Piece[]} */
  #pieces = [];
  /** The piece that is heard. @type {Piece | null} */
  #spoken = null;
  /** Whether no white space follows the last piece yet, and whether only marks and punctuation can go on with it. */
  #open = false;
  #alone = false;

  /** @param {HTMLElement} element is emptied and filled; its parent scrolls to the spoken word */
  constructor(element) {
    this.#element = element;
    element.replaceChildren();
    if (element.parentElement) element.parentElement.scrollTop = 0;
  }

  /** @param {string} text */
  append(text) {
    this.text += text;
    for (const character of text) {
      const alone = ALONE.test(character);
      if (/\s/.test(character)) {
        this.#element.append(character === "\n" ? make("br") : " ");
        this.#open = false;
      } else if (this.#open && !(LETTER.test(character) && (alone || this.#alone))) {
        const piece = /** @type {Piece} */ (this.#pieces.at(-1));
        piece.element.append(character);
        piece.end++;
      } else {
        this.#begin(character);
        this.#open = true;
        this.#alone = alone;
      }
      this.#length++;
    }
  }

  /** @param {Word[]} words new ones, or better times of known ones */
  time(words) {
    const byStart = new Map(this.words.map((word) => [word.char_start, word]));
    for (const word of words) byStart.set(word.char_start, word);
    this.words = [...byStart.values()].sort((a, b) => a.char_start - b.char_start);
    this.#paint();
  }

  /** @param {number} readyMs of the context's sound are there, heard or not */
  receive(readyMs) {
    this.#readyChars = this.#charsAt(readyMs);
    this.#paint();
  }

  /** Characters so far. */
  get chars() {
    return this.#length;
  }

  /** End of the last word whose time is known, ms. */
  get wordsMs() {
    return this.words.at(-1)?.end_ms ?? 0;
  }

  /** @param {number} playedMs of the context, as heard */
  play(playedMs) {
    if (this.cut) return;
    const chars = this.#charsAt(playedMs);
    if (chars === this.heardChars) return;
    this.heardChars = chars;
    this.#paint();
  }

  /** All text was heard. */
  finish() {
    if (this.cut) return;
    this.heardChars = this.#length;
    this.#paint();
  }

  /**
   * The rest will not be heard.
   * @param {string | null} heardText what the node counts as heard, once it has said so
   */
  interrupt(heardText) {
    this.cut = true;
    if (heardText === null) {
      // A word that has begun counts as heard until the node corrects it.
      const begun = this.#pieces.findLast(({ start }) => start < this.heardChars);
      this.heardChars = begun?.end ?? 0;
    } else if (this.text.startsWith(heardText)) {
      this.heardChars = [...heardText].length;
    }
    this.#paint();
  }

  /** Clear the display. */
  clear() {
    this.cut = true;
    this.#element.replaceChildren();
  }

  /** @returns {[string, string]} heard and not heard */
  parts() {
    const characters = [...this.text];
    return [characters.slice(0, this.heardChars).join(""), characters.slice(this.heardChars).join("")];
  }

  /** @param {string} character */
  #begin(character) {
    const element = this.#element.appendChild(make("span", { dataset: { is: "coming" } }, character));
    this.#pieces.push({ element, start: this.#length, end: this.#length + 1 });
  }

  /**
   * The characters of a word are taken as equally long.
   * @param {number} playedMs
   */
  #charsAt(playedMs) {
    const word = this.words.findLast(({ start_ms }) => start_ms <= playedMs);
    if (word && playedMs < word.end_ms) {
      const part = (playedMs - word.start_ms) / (word.end_ms - word.start_ms);
      return word.char_start + Math.ceil(part * (word.char_end - word.char_start));
    }
    return word?.char_end ?? 0;
  }

  #paint() {
    for (const { element, start, end } of this.#pieces) {
      let is = "coming";
      if (this.heardChars >= end) is = "heard";
      else if (this.cut) is = start < this.#readyChars ? "cut" : "unsaid";
      else if (this.heardChars > start) is = "now";
      else if (end <= this.#readyChars) is = "ready";
      if (element.dataset.is !== is) element.dataset.is = is;
    }
    const spoken = this.#pieces.findLast(({ start }) => start < this.heardChars) ?? null;
    if (spoken === this.#spoken) return;
    const box = this.#element.parentElement;
    if (spoken && box && !this.cut) follow(box, this.#spoken?.element ?? null, spoken.element);
    this.#spoken = spoken;
  }
}
