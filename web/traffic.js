/** The messages on the wire, for developers. Audio is counted, not listed. */

import { make } from "./dom.js";

const MOST = 300;

export class Traffic {
  #list;
  #startedAt = 0;
  /**
   * Current entry of consecutive audio.
   * @type {{contextNo: number, element: HTMLElement, count: number, samples: number} | null}
   */
  #audio = null;

  /** @param {HTMLOListElement} list */
  constructor(list) {
    this.#list = list;
  }

  /**
   * @param {"out" | "in" | "audio"} direction
   * @param {any} what a message, or a chunk of audio
   */
  add(direction, what) {
    this.#startedAt ||= performance.now();
    if (direction === "audio") return this.#addAudio(what);
    if (what.type === "ping" || what.type === "pong") return;
    const { type, ...fields } = what;
    const body = this.#entry(direction, type);
    body.textContent = Object.keys(fields).length ? JSON.stringify(fields) : "";
    // Acknowledgements come four times a second; audio before and after them is still one run.
    if (type !== "playback.ack" && type !== "words") this.#audio = null;
  }

  /** @param {import("./client.js").Chunk} chunk */
  #addAudio({ contextNo, pcm }) {
    if (this.#audio?.contextNo !== contextNo || !this.#audio.element.isConnected) {
      this.#audio = { contextNo, element: this.#entry("audio", "audio"), count: 0, samples: 0 };
    }
    const run = this.#audio;
    run.count++;
    run.samples += pcm.length;
    run.element.textContent = `context ${contextNo}: ${run.count} frames, ${Math.round(run.samples / 24)} ms`;
  }

  /**
   * @param {string} direction
   * @param {string} type
   * @returns {HTMLElement} where the fields go
   */
  #entry(direction, type) {
    const seconds = (performance.now() - this.#startedAt) / 1000;
    const time = make("time", {}, seconds.toFixed(2));
    const arrow = make("i", {}, direction === "out" ? "→" : "←");
    const fields = make("span");
    this.#list.prepend(make("li", { dataset: { direction } }, time, " ", arrow, " ", make("b", {}, type), " ", fields, " "));
    while (this.#list.children.length > MOST) this.#list.lastElementChild?.remove();
    return fields;
  }
}
