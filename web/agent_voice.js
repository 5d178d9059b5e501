/** The agent's voice: picked from a list, previewed, or cloned from a recording. */

import { ApiError } from "./api.js";
import { CloneDialog } from "./clone.js";
import { Preview } from "./preview.js";
import { VoicePicker } from "./voices.js";

/**
 * @typedef {object} Controls
 * @property {HTMLInputElement} input of the picker
 * @property {HTMLElement} list
 * @property {HTMLElement} about the choice
 * @property {HTMLElement} preview a button
 * @property {HTMLElement} clone a button, hidden where nothing can be cloned
 */

export class AgentVoice {
  /** The user chose another voice. @type {(name: string) => void} */
  onchange = () => {};
  /** A preview failed. @type {(message: string) => void} */
  onerror = () => {};
  #controls;
  #picker;
  #preview;
  #isSounding = false;

  /**
   * @param {import("./api.js").Api} api
   * @param {Controls} controls
   */
  constructor(api, controls) {
    this.#controls = controls;
    this.#picker = new VoicePicker(controls.input, controls.list, controls.about);
    this.#picker.onchange = (voice) => voice && this.onchange(voice.name);
    this.#preview = new Preview(api);
    this.#preview.onchange = (isSounding) => {
      this.#isSounding = isSounding;
      controls.preview.textContent = isSounding ? "Stop" : "Preview";
    };
    controls.preview.addEventListener("click", () => (this.#isSounding ? this.#preview.stop() : this.#play()));
    const dialog = new CloneDialog(api);
    dialog.onadded = async (name) => this.fill(await api.voices(), name);
    controls.clone.addEventListener("click", () => dialog.open());
  }

  /** Name of the chosen voice; null for the agent's own. */
  get wanted() {
    const name = this.#picker.chosen?.name ?? null;
    return name === this.#picker.preferred ? null : name;
  }

  /**
   * @param {import("./api.js").Voices} voices
   * @param {string} [chosen] name of one of them
   */
  fill(voices, chosen = this.#picker.chosen?.name) {
    this.#controls.clone.hidden = !voices.clones;
    this.#picker.fill(voices.voices, voices.default, chosen);
  }

  /** Stop the preview; idempotent. */
  hush() {
    this.#preview.stop();
  }

  async #play() {
    const { chosen } = this.#picker;
    if (!chosen) return;
    try {
      await this.#preview.play(chosen);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.onerror(error.message);
    }
  }
}
