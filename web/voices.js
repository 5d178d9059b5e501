/** The voice picker: buttons for a few voices with names, and a combobox that finds all others, grouped by language. */

import { make } from "./dom.js";

/**
 * @typedef {keyof typeof KINDS} Kind
 * @typedef {import("./api.js").Voice & {kind: Kind, of: string}} Voice `of`: what this is another name of, or ""
 */

const KINDS = { natural: "Natural voice", robot: "Robot voice", clone: "Cloned voice" };
const MOST_NAMED = 6;
/** Names of OpenAI's that stand for voices of an engine without names of its own: women and men in turn. */
const KNOWN = ["nova", "onyx", "shimmer", "echo", "coral", "ash"];

const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "none" });

/**
 * English name of a language.
 * @param {string} code BCP 47, or an engine's own
 * @param {import("./api.js").Voice[]} voices a voice that is named by the code describes the language: espeak's "ca-va" is "Catalan (Valencian)"
 */
export function languageName(code, voices) {
  const own = voices.find(({ name, languages }) => name === code && languages.length === 1)?.description;
  try {
    return own || (names.of(code) ?? code);
  } catch {
    return code; // not a well-formed tag
  }
}

export class VoicePicker {
  /** @type {(voice: Voice) => void} */
  onchange = () => {};
  /** The user wants to hear a voice of the list. @type {(voice: Voice, control: HTMLElement) => void} */
  onhear = () => {};
  /** @type {Voice[]} */
  voices = [];
  /** Name of the node's default voice. */
  preferred = "";
  /** To be spoken; "auto": that of the voice. */
  language = "auto";
  /** @type {Voice | null} */
  chosen = null;
  #input;
  #list;
  #about;
  #named;
  /** Options as shown, in their order. @type {HTMLElement[]} */
  #options = [];
  #active = -1;

  /**
   * @param {{input: HTMLInputElement, list: HTMLElement, about: HTMLElement, named: HTMLElement}} places with role
   *   combobox; with role listbox; describes the choice; gets the buttons
   */
  constructor({ input, list, about, named }) {
    this.#input = input;
    this.#list = list;
    this.#about = about;
    this.#named = named;
    named.addEventListener("click", ({ target }) => {
      const button = /** @type {HTMLElement} */ (target).closest("button");
      if (button) this.choose(button.dataset.name ?? "");
    });
    input.addEventListener("click", () => {
      input.select();
      this.#open("");
    });
    input.addEventListener("input", () => this.#open(input.value));
    input.addEventListener("blur", () => this.#close());
    input.addEventListener("keydown", (event) => this.#key(event));
    // The list must not take the focus: losing it would close the list before the click.
    list.addEventListener("pointerdown", (event) => event.preventDefault());
    list.addEventListener("click", (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      const option = /** @type {HTMLElement | null} */ (target.closest("[role=option]"));
      if (!option) return;
      if (target.matches(".hear")) this.#hear(option);
      else this.choose(option.dataset.name ?? "");
    });
  }

  /**
   * @param {import("./api.js").Voice[]} voices
   * @param {string} preferred name of the node's own choice
   * @param {string} [chosen] name of another one to choose, if it is there
   */
  fill(voices, preferred, chosen = preferred) {
    const own = voices.map((voice) => ({ ...voice, kind: kindOf(voice), of: "" }));
    const others = own.flatMap((voice) => voice.aliases.map((name) => ({ ...voice, name, of: voice.name })));
    this.voices = [...own, ...others];
    this.preferred = preferred;
    this.#named.replaceChildren(...this.#few().map(buttonOf));
    this.choose(this.#find(chosen) ? chosen : preferred);
  }

  /**
   * Choose a voice of a language, unless the current one speaks it.
   * @param {string[]} codes of the language, without regions
   */
  follow(codes) {
    const speaks = (/** @type {Voice | null | undefined} */ voice) =>
      voice?.languages.some((code) => codes.includes(code.split("-")[0]));
    if (speaks(this.chosen)) return;
    const voice = [this.#find(this.preferred), ...this.voices].find(speaks);
    if (voice) this.choose(voice.name);
  }

  /** @param {string} name ignored when there is no such voice */
  choose(name) {
    const voice = this.#find(name);
    if (voice) this.chosen = voice;
    this.#close();
    this.#about.replaceChildren(...(this.chosen ? [pictureOf(this.chosen), describe(this.chosen)] : []));
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (this.#named.querySelectorAll("button"))) {
      button.setAttribute("aria-pressed", String(button.dataset.name === this.chosen?.name));
    }
    if (voice) this.onchange(voice);
  }

  /** Voices with names: the node's own choice, clones, natural ones, then robots by names that are known. */
  #few() {
    const named = this.voices.filter(({ kind, of }) => kind !== "robot" && !of);
    const isFirst = (/** @type {Voice} */ { name, kind }) => 2 * Number(name === this.preferred) + Number(kind === "clone");
    named.sort((a, b) => isFirst(b) - isFirst(a));
    for (const name of KNOWN) {
      const known = this.#find(name);
      if (known && !named.some((other) => (other.of || other.name) === (known.of || name))) named.push(known);
    }
    return (named.length ? named : this.voices).slice(0, MOST_NAMED);
  }

  /** @param {HTMLElement | undefined} option */
  #hear(option) {
    const voice = option && this.#find(option.dataset.name ?? "");
    const control = option?.querySelector(".hear");
    if (voice && control instanceof HTMLElement) this.onhear(voice, control);
  }

  /** @param {string} name */
  #find(name) {
    return this.voices.find((voice) => voice.name === name);
  }

  /** @param {string} wanted words that name, description or language must have */
  #open(wanted) {
    this.#list.replaceChildren(...(wanted.trim() ? this.#found(wanted.trim().toLowerCase()) : this.#groups()));
    if (!this.#list.firstChild) this.#list.append(make("p", {}, "No voice fits."));
    this.#options = [.../** @type {NodeListOf<HTMLElement>} */ (this.#list.querySelectorAll("[role=option]"))];
    this.#list.hidden = false;
    this.#input.setAttribute("aria-expanded", "true");
    const present = this.#options.findIndex((option) => option.dataset.name === this.chosen?.name);
    this.#activate(wanted || present < 0 ? 0 : present);
  }

  /** Options for what fits: a voice of that name, or alias, before those whose names begin so, before all others. @param {string} wanted */
  #found(wanted) {
    const words = wanted.split(/\s+/);
    /** @type {(voice: Voice) => number} */
    const rank = (voice) => {
      const name = voice.name.toLowerCase();
      if (name.startsWith(wanted)) return name === wanted ? 0 : 1;
      const languages = voice.languages.map((code) => languageName(code, this.voices));
      // An alias has its name alone: else each voice would be found several times.
      const text = voice.of ? name : [name, describe(voice), ...languages].join(" ").toLowerCase();
      return words.every((word) => text.includes(word)) ? 2 : 3;
    };
    const byRank = Map.groupBy(this.voices, rank);
    return [0, 1, 2].flatMap((at) => byRank.get(at) ?? []).map((voice) => this.#optionOf(voice));
  }

  /** All voices: each language once, the one to be spoken first; several voices of one are a group. */
  #groups() {
    // Without its region: "Catalan (Valencian)" is a voice of Catalan.
    const languageOf = (/** @type {string | undefined} */ code) =>
      code ? languageName(code, this.voices).split(" (")[0] : "Any language";
    const byLanguage = Map.groupBy(this.voices.filter(({ of }) => !of), ({ languages: [code] }) => languageOf(code));
    const spoken = languageOf(this.language === "auto" ? this.chosen?.languages[0] : this.language);
    const sorted = [...byLanguage].sort(([a], [b]) => Number(b === spoken) - Number(a === spoken) || a.localeCompare(b));
    return sorted.map(([language, members], at) => {
      if (members.length === 1) return this.#optionOf(members[0]);
      const title = make("p", { id: `${this.#list.id}-${at}` }, language);
      const group = make("div", { role: "group" }, title, ...members.map((voice) => this.#optionOf(voice, language)));
      group.setAttribute("aria-labelledby", title.id);
      return group;
    });
  }

  /**
   * @param {Voice} voice
   * @param {string} language of the group around it, which it does not repeat
   */
  #optionOf(voice, language = "") {
    const id = `${this.#list.id}-${voice.name.replace(/[^a-z0-9]/gi, "_")}`;
    const state = { role: "option", ariaSelected: String(voice === this.chosen), dataset: { name: voice.name } };
    // For pointers and fingers; keys have Alt Enter, because an option has no controls of its own.
    const hear = make("b", { className: "hear", title: "Hear this voice (Alt Enter)" });
    const what = describe(voice).replace(language, "").replace(/^[\s,]+/, "");
    return make("div", { id, ...state }, hear, make("span", {}, pictureOf(voice), voice.name), make("small", {}, what));
  }

  #close() {
    this.#list.hidden = true;
    this.#input.setAttribute("aria-expanded", "false");
    this.#input.removeAttribute("aria-activedescendant");
    this.#input.value = this.chosen?.name ?? "";
  }

  /** @param {number} at */
  #activate(at) {
    this.#options[this.#active]?.removeAttribute("data-active");
    this.#active = Math.min(Math.max(at, 0), this.#options.length - 1);
    const option = this.#options[this.#active];
    if (!option) return;
    option.dataset.active = "";
    this.#input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const isOpen = !this.#list.hidden;
    const steps = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 });
    if (event.key in steps) {
      event.preventDefault();
      if (isOpen) this.#activate(this.#active + steps[event.key]);
      else this.#open("");
    } else if (event.key === "Enter" && event.altKey && isOpen) {
      event.preventDefault();
      this.#hear(this.#options[this.#active]);
    } else if (event.key === "Enter" && isOpen) {
      event.preventDefault();
      this.choose(this.#options[this.#active]?.dataset.name ?? "");
    } else if (event.key === "Escape" && isOpen) {
      event.preventDefault(); // it closes the list alone
      this.#close();
    }
  }
}

/**
 * Robots are espeak-ng's voices, which are named by their language, and the tones.
 * @param {import("./api.js").Voice} voice
 * @returns {Kind}
 */
function kindOf({ name, languages, description }) {
  if (/^cloned\b/.test(description)) return "clone";
  const isRobot = (languages.length === 1 && name.split("+")[0] === languages[0]) || name.startsWith("tone-");
  return isRobot ? "robot" : "natural";
}

/** @param {Voice} voice */
function describe({ of, description, languages }) {
  const what = description || languages.map((code) => languageName(code, [])).join(", ");
  return of ? `${of}: ${what}` : what;
}

/** What kind of voice it is. @param {Voice} voice */
function pictureOf({ kind }) {
  const pictures = /** @type {HTMLTemplateElement} */ (document.getElementById("kinds")).content;
  const picture = /** @type {Element} */ (pictures.querySelector(`[data-kind=${kind}]`)?.cloneNode(true));
  picture.setAttribute("aria-label", KINDS[kind]);
  return picture;
}

/** @param {Voice} voice */
function buttonOf(voice) {
  const title = `${KINDS[voice.kind]}: ${describe(voice)}`;
  return make("button", { type: "button", title, dataset: { name: voice.name } }, pictureOf(voice), voice.name);
}
