/** The conversation on the page: one entry for each turn, its text marked as heard, coming or cut. */

import { pieces } from "./conversation.js";
import { make } from "./dom.js";
import { lineAt } from "./subtitle.js";

const NEAR_PX = 60; // do not scroll for a reader who scrolled up further than this

/**
 * @typedef {import("./conversation.js").Turn} Turn
 * @typedef {{element: HTMLLIElement, text: HTMLElement, note: HTMLElement, shown: string}} Entry
 */

export class ConversationView {
  /** The user asks for the figures of a turn. @type {(id: number) => void} */
  onask = () => {};
  #list;
  #subtitle;
  /** By the turn's id. @type {Map<number, Entry>} */
  #entries = new Map();

  /**
   * @param {HTMLElement} list
   * @param {HTMLElement} subtitle
   */
  constructor(list, subtitle) {
    this.#list = list;
    this.#subtitle = subtitle;
  }

  /** @param {import("./conversation.js").Conversation} conversation */
  show({ turns, spoken, phase }) {
    const list = this.#list;
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_PX;
    const kept = new Set(turns.map(({ id }) => id));
    for (const [id, { element }] of this.#entries) {
      if (kept.has(id)) continue;
      element.remove();
      this.#entries.delete(id);
    }
    for (const turn of turns) this.#paint(turn);
    if (follows) list.scrollTop = list.scrollHeight;
    this.#showLine(phase === "speaking" || spoken?.cut ? spoken : null);
  }

  /** Show an empty conversation. */
  clear() {
    this.#entries.clear();
    this.#list.replaceChildren();
    this.#subtitle.replaceChildren();
  }

  /**
   * @param {number} id of a turn
   * @param {number} totalMs until it was heard
   */
  time(id, totalMs) {
    const button = this.#noted(id, "button");
    if (!(button instanceof HTMLButtonElement)) return;
    button.type = "button";
    button.textContent = `${Math.round(totalMs)} ms`;
    button.title = "Where the time to this answer went";
    button.onclick = () => this.onask(id);
  }

  /**
   * @param {number} id of an interrupted turn
   * @param {number} ms until it was silent
   */
  silence(id, ms) {
    const note = this.#noted(id, "span");
    if (note) note.textContent = `silent after ${Math.round(ms)} ms`;
  }

  /**
   * The element of this kind in an entry's last line.
   * @param {number} id
   * @param {"button" | "span"} kind
   */
  #noted(id, kind) {
    const note = this.#entries.get(id)?.note;
    return note && (note.querySelector(kind) ?? note.appendChild(make(kind)));
  }

  /** @param {Turn} turn */
  #paint(turn) {
    const entry = this.#entries.get(turn.id) ?? this.#add(turn);
    const parts = pieces(turn);
    const open = turn.who === "agent" ? !turn.over : !turn.text;
    const shown = JSON.stringify([parts, open]);
    if (shown === entry.shown) return;
    entry.shown = shown;
    // Screen readers get an entry when it is complete, not word by word.
    entry.element.setAttribute("aria-busy", String(open));
    entry.element.toggleAttribute("data-waiting", !parts.length);
    entry.text.replaceChildren(...parts.map(elementOf));
  }

  /** @param {Turn} turn */
  #add({ id, who }) {
    const name = make("p", { className: "who" }, who === "agent" ? "Agent" : "You");
    const text = make("p", { className: "words", dir: "auto" });
    const note = make("p", { className: "note" });
    const element = make("li", { dataset: { who, turn: String(id) } }, name, text, note);
    const entry = { element, text, note, shown: "" };
    this.#entries.set(id, entry);
    this.#list.append(element);
    return entry;
  }

  /** @param {Turn | null} turn its line that is being heard becomes the subtitle */
  #showLine(turn) {
    if (!turn) return this.#subtitle.replaceChildren();
    const [from, to] = lineAt(turn.text, turn.heard);
    let at = 0;
    const line = pieces({ ...turn, filler: "" }).flatMap(({ is, text }) => {
      const part = text.slice(Math.max(0, from - at), Math.max(0, to - at));
      at += text.length;
      return part ? [elementOf({ is, text: part })] : [];
    });
    this.#subtitle.replaceChildren(...line);
  }
}

/** @param {{is: string, text: string}} piece */
function elementOf({ is, text }) {
  return make(is === "cut" ? "s" : "span", { dataset: { is } }, text);
}
