/** The text field, and how its text is sent: at once, token by token as an LLM writes, or as it is typed. */

import { UNSPACED } from "./scripts.js";
import { Typing } from "./typing.js";

const PAUSE_MS = 700; // a pause in typing after which the words so far are flushed
const END_MS = 6_000; // a pause that ends the text

// Sent while typing: whole words, and characters of scripts without spaces.
const COMPLETE = new RegExp(String.raw`^[\s\S]*(?:\s|[。!?、,]|${UNSPACED})`, "u");

/** @typedef {"stream" | "whole" | "live"} Arrival */

export class Composer {
  /** Begin a turn; false when the node cannot take one. @type {() => Promise<import("./speaker.js").Turn | null>} */
  onbegin = async () => null;
  /** @type {Arrival} */
  arrival = "stream";
  /** Tokens per second. */
  rate = 25;
  #area;
  #speaker;
  /** @type {ReturnType<typeof setTimeout>} */
  #pause = 0;
  #flushes = 0;
  /** Ends when the turn that the first typed word asked for has begun. @type {Promise<unknown> | null} */
  #beginning = null;

  /**
   * @param {HTMLTextAreaElement} area
   * @param {import("./speaker.js").Speaker} speaker
   */
  constructor(area, speaker) {
    this.#area = area;
    this.#speaker = speaker;
    area.addEventListener("input", (event) => {
      if (this.arrival === "live" && !(/** @type {InputEvent} */ (event).isComposing)) this.#typed();
    });
    area.addEventListener("compositionend", () => this.arrival === "live" && this.#typed());
    area.addEventListener("keydown", (event) => {
      if (this.arrival !== "live" || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.finish();
    });
  }

  get text() {
    return this.#area.value;
  }

  set text(text) {
    this.#area.value = text;
  }

  /**
   * Speak a whole text in the chosen way of arrival.
   * @param {string} text
   */
  async speak(text) {
    if (!text.trim()) return;
    const turn = await this.onbegin();
    if (!turn) return;
    if (this.arrival !== "stream") {
      this.#speaker.write(text);
      turn.context.end();
      return;
    }
    turn.source = new Typing(text, () => this.rate, (token) => this.#speaker.write(token), () => turn.context.end());
    turn.source.start();
  }

  /** End the typed text. */
  async finish() {
    await this.#release(this.#area.value);
    this.#end();
  }

  #typed() {
    const complete = COMPLETE.exec(this.#area.value);
    if (complete) this.#release(complete[0]);
    clearTimeout(this.#pause);
    this.#pause = setTimeout(() => this.#paused(), PAUSE_MS);
  }

  #paused() {
    this.#speaker.writable?.context.flush(`pause-${++this.#flushes}`);
    this.#pause = setTimeout(() => this.#end(), END_MS);
  }

  #end() {
    clearTimeout(this.#pause);
    this.#speaker.writable?.context.end();
  }

  /**
   * Remove sent text from the field: it cannot be edited any more.
   * @param {string} text a head of the field's
   */
  async #release(text) {
    this.#area.value = this.#area.value.slice(text.length);
    if (this.#beginning) await this.#beginning;
    if (!this.#speaker.writable && text.trim()) {
      this.#beginning = this.onbegin();
      await this.#beginning;
      this.#beginning = null;
    }
    if (this.#speaker.writable) this.#speaker.write(text);
  }
}
