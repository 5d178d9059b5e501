/** The dialog that records a voice and adds it to the node, with consent. */

import { ApiError } from "./api.js";
import { at } from "./dom.js";
import { MicrophoneError } from "./microphone.js";
import { Recorder } from "./recorder.js";

const CONSENT = "The speaker, or whoever recorded the speaker with permission, agreed on the node's page.";
const TEXT =
  "On quiet evenings I walk down to the harbour, count the boats, and think about what the day has brought. " +
  "Some days it is a great deal, and some days only the smell of the sea.";

export class CloneDialog {
  /** Called with the name of the voice that was added. @type {(name: string) => void} */
  #added = () => {};
  #api;
  #recorder = new Recorder();
  /** @type {Blob | null} */
  #clip = null;
  #dialog = /** @type {HTMLDialogElement} */ (at("clone-dialog"));
  #transcript = /** @type {HTMLTextAreaElement} */ (at("clone-transcript"));
  #name = /** @type {HTMLInputElement} */ (at("clone-name"));
  #player = /** @type {HTMLAudioElement} */ (at("recording"));

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.#api = api;
    this.#transcript.value = TEXT;
    this.#recorder.ontick = (leftMs) => this.#tell(`Recording: ${Math.ceil(leftMs / 1000)} s left`);
    at("record").addEventListener("click", () => (this.#recorder.recording ? this.#recorder.stop() : this.#record()));
    at("clone-cancel").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => this.#forget());
    at("clone-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#add();
    });
  }

  /** @param {(name: string) => void} added called with the name of the new voice */
  open(added) {
    this.#added = added;
    this.#dialog.showModal();
  }

  async #record() {
    this.#complain("");
    at("record").textContent = "Stop";
    try {
      this.#take(await this.#recorder.record());
    } catch (error) {
      if (!(error instanceof MicrophoneError)) throw error;
      this.#complain(`${error.problem.title}. ${error.problem.body}`);
    } finally {
      at("record").textContent = this.#clip ? "Record again" : "Record ten seconds";
    }
  }

  /** @param {Blob} clip */
  #take(clip) {
    if (!this.#dialog.open) return;
    this.#clip = clip;
    URL.revokeObjectURL(this.#player.src);
    this.#player.src = URL.createObjectURL(clip);
    this.#player.hidden = false;
    this.#tell("Listen to it, or record again.");
    at("clone-add").toggleAttribute("disabled", false);
  }

  async #add() {
    if (!this.#clip) return;
    const name = this.#name.value;
    this.#complain("");
    this.#tell("The node listens to the recording.");
    at("clone-add").toggleAttribute("disabled", true);
    try {
      const transcript = this.#transcript.value.trim();
      await this.#api.addVoice({ name, clip: this.#clip, consent: CONSENT, transcript });
      this.#dialog.close();
      this.#added(name);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#tell("");
      this.#complain(error.message);
      at("clone-add").toggleAttribute("disabled", false);
    }
  }

  /** Drop the recording: only the node keeps an added voice. */
  #forget() {
    this.#recorder.stop();
    URL.revokeObjectURL(this.#player.src);
    this.#player.removeAttribute("src");
    this.#player.hidden = true;
    this.#clip = null;
    /** @type {HTMLInputElement} */ (at("consent")).checked = false;
    at("clone-add").toggleAttribute("disabled", true);
    at("record").textContent = "Record ten seconds";
    this.#tell("");
    this.#complain("");
  }

  /** @param {string} text */
  #tell(text) {
    at("record-state").textContent = text;
  }

  /** @param {string} text */
  #complain(text) {
    at("clone-problem").textContent = text;
  }
}
