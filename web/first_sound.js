/** What a turn waits for, and when it is first heard. Pure. */

import { SAMPLE_RATE } from "./audio.js";

const AUDIBLE = 104; // of 16 bits: -50 dBFS
const BLOCK = SAMPLE_RATE / 100; // 10 ms

/**
 * The start of the first 10 ms that have a sample above -50 dBFS, in samples.
 * @param {Int16Array} pcm 24 kHz
 * @returns {number} -1 if there are none
 */
export function audibleIn(pcm) {
  const at = pcm.findIndex((sample) => Math.abs(sample) > AUDIBLE);
  return at < 0 ? at : at - (at % BLOCK);
}

/** Times are milliseconds on one clock. */
export class FirstSound {
  /** From the first text until the words were there that the speech begins with; null while they are not known. @type {number | null} */
  waitMs = null;
  /** Characters of the turn, and when they had left, until the speech begins. @type {{chars: number, at: number}[]} */
  #written = [];
  /** When its first sample is heard. @type {number | null} */
  #playedAt = null;
  /** Its audible chunk: when that came, and the places of it and of the audible part in the turn, in samples. */
  #audible = /** @type {{cameAt: number, from: number, at: number} | null} */ (null);

  /**
   * More text has left.
   * @param {number} chars of the turn so far
   * @param {number} at
   */
  write(chars, at) {
    if (this.waitMs === null) this.#written.push({ chars, at });
  }

  /** The speech begins with the words up to this character. @param {number} chars */
  tell(chars) {
    if (this.waitMs !== null || !this.#written.length) return;
    // A word is whole when what follows it has begun.
    const whole = this.#written.find((text) => text.chars > chars) ?? this.#written[this.#written.length - 1];
    this.waitMs = whole.at - this.#written[0].at;
    this.#written = [];
  }

  /**
   * A chunk has come.
   * @param {Int16Array} pcm
   * @param {number} firstSample its place in the turn
   * @param {number} cameAt
   */
  receive(pcm, firstSample, cameAt) {
    this.tell(0);
    const at = this.#audible ? -1 : audibleIn(pcm);
    if (at >= 0) this.#audible = { cameAt, from: firstSample, at };
  }

  /** @param {number} at when its first sample is heard */
  play(at) {
    this.#playedAt = at;
  }

  /** When its first audible 10 ms are heard, later if they came too late to be played in time; null: not known yet. */
  get audibleAt() {
    if (this.#playedAt === null || !this.#audible) return null;
    const { cameAt, from, at } = this.#audible;
    return Math.max(cameAt, this.#playedAt + (1000 * from) / SAMPLE_RATE) + (1000 * at) / SAMPLE_RATE;
  }
}
