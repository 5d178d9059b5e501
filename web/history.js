/** What was said: a line each, which opens; it can be heard again and saved. */

import { ApiError } from "./api.js";
import { make } from "./dom.js";
import { MOST_SAMPLES } from "./recording.js";

const MOST = 20; // entries
const NAME_CHARS = 40; // of the text in the name of a file

/** @typedef {import("./speaker.js").Outcome} Outcome */

export class History {
  /** A file could not be had. */
  onerror = (/** @type {ApiError} */ _error) => {};
  #api;
  #clip;
  #list;
  /** Newest first. @type {Outcome[]} */
  #said = [];

  /**
   * @param {import("./api.js").Api} api
   * @param {import("./clip.js").Clip} clip
   * @param {HTMLElement} list
   */
  constructor(api, clip, list) {
    this.#api = api;
    this.#clip = clip;
    this.#list = list;
  }

  /** Another turn begins: the words of the one before are shown here from now on. */
  begin() {
    this.#list.querySelector("[data-shown]")?.removeAttribute("data-shown");
  }

  /** @param {Outcome} said */
  add(said) {
    this.#said.unshift(said);
    const entry = this.#entryOf(said);
    entry.toggleAttribute("data-shown", said.shown);
    this.#list.prepend(entry);
    this.#said.length = Math.min(this.#said.length, MOST);
    while (this.#list.children.length > MOST) this.#list.lastElementChild?.remove();
    let samples = 0;
    for (const older of this.#said) {
      samples += older.recording?.samples ?? 0;
      if (samples > MOST_SAMPLES) older.recording = null;
    }
  }

  /** @param {Outcome} said */
  #entryOf(said) {
    const { heard, unheard, playedMs, cut } = said;
    const line = make("p", { dir: "auto" }, make("span", {}, heard));
    if (unheard.trim()) line.append(make("s", {}, unheard));
    const length = `${(playedMs / 1000).toFixed(1)} s`;
    const row = make("div", { className: "said-row" }, make("small", {}, cut ? `stopped after ${length}` : length));
    const entry = make("li", {}, make("details", {}, make("summary", {}, line)), row);
    if (!heard.trim()) return entry;
    const play = this.#button(row, "Play", "Hear it again", () => this.#clip.toggle(play, wav, entry));
    const wav = (/** @type {AbortSignal} */ signal) => this.#wav(said, signal);
    this.#button(row, "WAV", "Save it as a WAV file", async () => save(await wav(NEVER), `${nameOf(heard)}.wav`));
    this.#button(row, "MP3", "The node speaks it once more, as an MP3 file", async () =>
      save(await this.#speech(said, "mp3", NEVER), `${nameOf(heard)}.mp3`),
    );
    return entry;
  }

  /**
   * The sound that was heard, or, where the page does not hold it, made again by the node.
   * @param {Outcome} said
   * @param {AbortSignal} signal
   */
  async #wav(said, signal) {
    return said.recording?.whole ? said.recording.wav(said.cut ? said.playedMs : Infinity) : this.#speech(said, "wav", signal);
  }

  /**
   * @param {Outcome} said
   * @param {"wav" | "mp3"} response_format
   * @param {AbortSignal} signal
   */
  #speech({ heard, options }, response_format, signal) {
    return this.#api.speech({ ...options, input: heard, response_format }, signal);
  }

  /**
   * @param {HTMLElement} row
   * @param {string} label
   * @param {string} title
   * @param {() => Promise<void>} run
   */
  #button(row, label, title, run) {
    const button = row.appendChild(make("button", { type: "button", className: "quiet", title }, label));
    button.addEventListener("click", () =>
      run().catch((error) => {
        if (!(error instanceof ApiError)) throw error;
        this.onerror(error);
      }),
    );
    return button;
  }
}

const NEVER = new AbortController().signal;

/** A file's name from the head of its text. @param {string} text */
function nameOf(text) {
  const words = text.match(/[\p{L}\p{M}\p{N}]+/gu) ?? [];
  return [...words.join("-")].slice(0, NAME_CHARS).join("") || "speech";
}

/**
 * @param {Blob} file
 * @param {string} name
 */
function save(file, name) {
  const url = URL.createObjectURL(file);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // Safari reads it after the click
}
