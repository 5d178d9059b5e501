/** Messages that say what happened and what to do. One of a kind at a time; the newest is on top. */

import { make } from "./dom.js";
import { recall, remember } from "./store.js";

/**
 * @typedef {object} Notice
 * @property {string} title
 * @property {string} body commands stand between backticks
 * @property {{label: string, run: () => void}[]} [actions] each also closes the notice
 * @property {{ms: number, run: () => void}} [countdown] seconds shown in place of `{s}` in the body, then `run`
 * @property {boolean} [calm] nothing is wrong
 * @property {boolean} [once] not shown again, with these words, in this browser after it was closed
 */

export class Notices {
  #root;
  /**
   * Open notices by kind, with what ends their countdown.
   * @type {Map<string, {element: HTMLElement, stop: () => void}>}
   */
  #open = new Map();

  /** @param {HTMLElement} root a live region */
  constructor(root) {
    this.#root = root;
  }

  /**
   * @param {string} kind
   * @param {Notice} notice
   */
  show(kind, { title, body, actions = [], countdown, calm = false, once = false }) {
    this.close(kind);
    if (once && recall(`told.${kind}`) === body) return;
    const paragraph = make("p");
    const text = make("div", {}, make("h2", {}, title), paragraph);
    const element = make("section", { className: "notice", dataset: { kind, calm: String(calm) } }, text);
    const stop = countdown ? this.#count(kind, paragraph, body, countdown) : () => {};
    if (!countdown) paragraph.append(...withCommands(body));
    const closing = { label: "Close", run: () => remember(`told.${kind}`, body) };
    for (const { label, run } of once ? [...actions, closing] : actions) {
      const button = element.appendChild(make("button", { type: "button" }, label));
      button.addEventListener("click", () => {
        this.close(kind);
        run();
      });
    }
    this.#open.set(kind, { element, stop });
    this.#root.prepend(element);
  }

  /** @param {string} kind */
  close(kind) {
    const notice = this.#open.get(kind);
    if (!notice) return;
    notice.stop();
    notice.element.remove();
    this.#open.delete(kind);
  }

  /** @returns {string[]} kinds that are shown */
  get kinds() {
    return [...this.#open.keys()];
  }

  /**
   * @param {string} kind
   * @param {HTMLElement} paragraph
   * @param {string} body
   * @param {{ms: number, run: () => void}} countdown
   */
  #count(kind, paragraph, body, { ms, run }) {
    const [before, after] = body.split("{s}");
    // Hidden from screen readers: a countdown read aloud would hide the message.
    const number = make("span", { ariaHidden: "true" });
    paragraph.append(before, number, after);
    const until = performance.now() + ms;
    const tick = () => {
      const left = until - performance.now();
      number.textContent = `${Math.max(0, Math.ceil(left / 1000))} s`;
      if (left > 0) return;
      this.close(kind);
      run();
    };
    const timer = setInterval(tick, 200);
    tick();
    return () => clearInterval(timer);
  }
}

/** @param {string} text with commands between backticks */
function withCommands(text) {
  return text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
}
