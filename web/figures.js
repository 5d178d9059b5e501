/** The figures of a call: stages of the time to each answer, and time to silence after an interruption. */

import { flashSilence } from "./dom.js";
import { showWaterfall } from "./waterfall_view.js";

const MOST_MARKED = 60; // turns whose figures can be looked up

/**
 * @typedef {import("./conversation.js").Turn} Turn
 * @typedef {import("./waterfall.js").Marks} Marks
 *
 * @typedef {object} Places elements that show them
 * @property {HTMLElement} waterfall a `dl`
 * @property {HTMLElement} about the waterfall in words
 * @property {HTMLElement} flash
 */

export class Figures {
  /** From the end of the user's words to the first sound heard, of the last answer, ms. @type {number | null} */
  heardMs = null;
  /** From the last interruption to silence, ms. @type {number | null} */
  silenceMs = null;
  #view;
  #places;
  /** By turn. @type {Map<number, Marks>} */
  #marks = new Map();

  /**
   * @param {import("./conversation_view.js").ConversationView} view shows a figure beside its turn
   * @param {Places} places
   */
  constructor(view, places) {
    this.#view = view;
    this.#places = places;
    view.onask = (id) => this.#show(id);
  }

  /** Reset for another call. */
  clear() {
    this.#marks.clear();
  }

  /**
   * @param {Turn} turn
   * @param {Marks} marks
   */
  mark({ id }, marks) {
    this.#marks.set(id, marks);
    if (this.#marks.size > MOST_MARKED) this.#marks.delete(this.#marks.keys().next().value ?? 0);
    this.heardMs = marks.heard;
    this.#view.time(id, this.#show(id));
  }

  /**
   * @param {Turn} turn an interrupted one
   * @param {number} ms until it was silent
   */
  silence({ id }, ms) {
    this.silenceMs = ms;
    this.#view.silence(id, ms);
    flashSilence(this.#places.flash, ms);
  }

  /** @param {number} id of a turn */
  #show(id) {
    const { waterfall, about } = this.#places;
    const totalMs = showWaterfall(waterfall, this.#marks.get(id) ?? {});
    about.textContent = `From the end of your words: ${Math.round(totalMs)} ms.`;
    return totalMs;
  }
}
