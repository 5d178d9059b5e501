/** A field for a voice: picked from a list, heard before it is chosen, or cloned from a recording. */

import { ApiError } from "./api.js";
import { VoicePicker } from "./voices.js";

/** What a voice says of itself, by language. @type {Record<string, string>} */
const WORDS = {
  en: "Hello, this is how I sound. Shall we talk?",
  de: "Hallo, so klinge ich. Wollen wir reden?",
  es: "Hola, así sueno yo. ¿Hablamos?",
  fr: "Bonjour, voilà ma voix. On se parle ?",
  it: "Ciao, questa è la mia voce. Parliamo?",
  ja: "こんにちは、これが私の声です。",
  ko: "안녕하세요, 이것이 제 목소리입니다.",
  pt: "Olá, esta é a minha voz. Vamos conversar?",
  ru: "Здравствуйте, так звучит мой голос.",
  zh: "你好，这就是我的声音。我们聊聊吧？",
};

/**
 * @typedef {object} Controls
 * @property {HTMLInputElement} input of the picker
 * @property {HTMLElement} list
 * @property {HTMLElement} named gets a button for each of a few voices
 * @property {HTMLElement} about the choice
 * @property {HTMLElement} preview a button
 * @property {HTMLElement} clone a button
 */

export class VoiceField {
  /** Another voice was chosen. @type {(name: string) => void} */
  onchange = () => {};
  /** A preview failed. @type {(message: string) => void} */
  onerror = () => {};
  /** The user wants to add a voice. @type {(clones: boolean) => void} `clones`: whether the node can */
  onclone = () => {};
  #api;
  #clip;
  #picker;
  #clones = false;

  /**
   * @param {import("./api.js").Api} api
   * @param {import("./clip.js").Clip} clip
   * @param {Controls} controls
   */
  constructor(api, clip, controls) {
    this.#api = api;
    this.#clip = clip;
    this.#picker = new VoicePicker(controls);
    this.#picker.onchange = (voice) => this.onchange(voice.name);
    this.#picker.onhear = (voice, control) => this.#play(voice, control);
    controls.preview.addEventListener("click", () => this.chosen && this.#play(this.chosen, controls.preview));
    controls.clone.addEventListener("click", () => this.onclone(this.#clones));
  }

  get chosen() {
    return this.#picker.chosen;
  }

  /** The language to be spoken; its voices are listed first. @param {string} code "auto": that of the voice */
  set language(code) {
    this.#picker.language = code;
  }

  /** Name of the chosen voice; null for the node's own. */
  get wanted() {
    const name = this.chosen?.name ?? null;
    return name === this.#picker.preferred ? null : name;
  }

  /**
   * @param {import("./api.js").Voices} voices
   * @param {string} [chosen] name of one of them
   */
  fill(voices, chosen = this.chosen?.name) {
    this.#clones = voices.clones;
    this.#picker.fill(voices.voices, voices.default, chosen);
  }

  /** Choose a voice of a language, unless the current one speaks it. @param {string[]} codes without regions */
  follow(codes) {
    this.#picker.follow(codes);
  }

  /**
   * @param {import("./api.js").Voice} voice
   * @param {HTMLElement} control
   */
  async #play({ name, languages }, control) {
    const input = WORDS[(languages[0] ?? "en").split("-")[0]] ?? WORDS.en;
    try {
      await this.#clip.toggle(control, (signal) => this.#api.speech({ voice: name, input }, signal));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.onerror(error.message);
    }
  }
}
