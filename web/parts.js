/** The agent's components, and which are missing. */

import { make } from "./dom.js";

const LOOK_MS = 5_000; // between checks for a missing component; weights take minutes to load
/** Labels of the components. */
const PARTS = { stt: "Hears with", llm: "Thinks with", tts: "Speaks with" };

/** @typedef {import("./api.js").Agent} Agent */

export class Parts {
  /** The components changed. */
  onchange = () => {};
  /** Null until it is known. @type {Agent | null} */
  agent = null;
  #api;
  #list;
  #notices;
  /** Missing components, each with the message of its notice. @type {Map<string, string>} */
  #lacks = new Map();
  /** @type {ReturnType<typeof setTimeout>} */
  #looking = 0;

  /**
   * @param {import("./api.js").Api} api
   * @param {HTMLElement} list a `dl`
   * @param {import("./notices.js").Notices} notices
   */
  constructor(api, list, notices) {
    this.#api = api;
    this.#list = list;
    this.#notices = notices;
  }

  /** Whether the agent can hear the user. */
  get hears() {
    return this.agent !== null && this.agent.stt.kind !== "none" && isSecureContext;
  }

  /** Why no call by voice can begin, or that none runs. */
  get idle() {
    if (this.hears || !this.agent) return "Not in a call.";
    return isSecureContext ? "The agent has no speech recognition. You can write." : "No microphone without HTTPS.";
  }

  /** @param {Agent} agent */
  tell(agent) {
    this.agent = agent;
    const rows = Object.entries(PARTS).map(([part, label]) => rowOf(label, agent[/** @type {"stt"} */ (part)]));
    this.#list.replaceChildren(...rows);
    const { stt, llm } = agent;
    this.#lack("deaf", "The agent cannot hear you", stt.kind === "none", stt.message);
    this.#lack("builtin", "A small built-in responder answers", llm.kind === "builtin", llm.message);
    clearTimeout(this.#looking);
    if (this.#lacks.size) this.#looking = setTimeout(() => this.#look(agent), LOOK_MS);
    this.onchange();
  }

  /** @param {Agent} known shown again if there is no answer */
  async #look(known) {
    const isSeen = this.#list.closest("main")?.checkVisibility() && !document.hidden;
    const agent = isSeen ? await this.#api.agent().catch(() => null) : null;
    this.tell(agent ?? known);
  }

  /**
   * Show what is missing.
   * @param {string} kind
   * @param {string} title
   * @param {boolean} isMissing
   * @param {string | null} message
   */
  #lack(kind, title, isMissing, message) {
    const body = isMissing ? (message ?? "The node's settings name none.") : "";
    if ((this.#lacks.get(kind) ?? "") === body) return;
    if (isMissing) {
      this.#lacks.set(kind, body);
      this.#notices.show(kind, { title, body, calm: true, once: true });
    } else {
      this.#lacks.delete(kind);
      this.#notices.close(kind);
    }
  }
}

/**
 * @param {string} label
 * @param {import("./api.js").Part} part
 */
function rowOf(label, { kind, name }) {
  return make("div", {}, make("dt", {}, label), make("dd", {}, kind === "none" ? "nothing" : name));
}
