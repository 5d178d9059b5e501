/** The voice picker: a combobox with a filter, grouped by language. */

/** @typedef {import("./api.js").Voice} Voice */

const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "none" });

/**
 * English name of a language.
 * @param {string} code BCP 47, or an engine's own
 * @param {Voice[]} voices a voice that is named by the code describes the language: espeak's "ca-va" is "Catalan (Valencian)"
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
  /** @type {Voice | null} */
  chosen = null;
  #input;
  #list;
  #about;
  /** Options as shown, in their order. @type {HTMLElement[]} */
  #options = [];
  #active = -1;

  /**
   * @param {HTMLInputElement} input with role combobox
   * @param {HTMLElement} list with role listbox
   * @param {HTMLElement} about describes the choice
   */
  constructor(input, list, about) {
    this.#input = input;
    this.#list = list;
    this.#about = about;
    input.addEventListener("focus", () => input.select());
    input.addEventListener("click", () => this.#open(""));
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
   * @param {Voice[]} voices
   * @param {string} preferred name of the node's own choice
   * @param {string} [chosen] name of another one to choose, if it is there
   */
  fill(voices, preferred, chosen = preferred) {
    this.voices = voices;
    this.preferred = preferred;
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
    this.#about.textContent = this.chosen ? describe(this.chosen) : "";
    if (voice) this.onchange(voice);
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
    const words = wanted.toLowerCase().split(/\s+/);
    const fits = (/** @type {Voice} */ voice) => {
      const languages = voice.languages.map((code) => languageName(code, this.voices));
      const text = [voice.name, describe(voice), ...languages].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    };
    this.#list.replaceChildren(...this.#groups(this.voices.filter(fits)));
    this.#options = [.../** @type {NodeListOf<HTMLElement>} */ (this.#list.querySelectorAll("[role=option]"))];
    this.#list.hidden = false;
    this.#input.setAttribute("aria-expanded", "true");
    const present = this.#options.findIndex((option) => option.dataset.name === this.chosen?.name);
    this.#activate(wanted || present < 0 ? 0 : present);
  }

  /** @param {Voice[]} voices */
  #groups(voices) {
    if (!voices.length) {
      const none = document.createElement("p");
      none.textContent = "No voice fits.";
      return [none];
    }
    // Without its region: "Catalan (Valencian)" is a voice of Catalan.
    const languageOf = (/** @type {Voice} */ { languages: [code] }) =>
      code ? languageName(code, this.voices).split(" (")[0] : "Any language";
    const byLanguage = Map.groupBy(voices, languageOf);
    const sorted = [...byLanguage].sort(([a], [b]) => a.localeCompare(b));
    return sorted.map(([language, members], at) => {
      const group = document.createElement("div");
      const title = group.appendChild(document.createElement("p"));
      group.setAttribute("role", "group");
      group.setAttribute("aria-labelledby", (title.id = `${this.#list.id}-${at}`));
      title.textContent = language;
      for (const voice of members) group.append(optionOf(voice, voice === this.chosen, this.#list.id));
      return group;
    });
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
      this.#close();
    }
  }
}

/** @param {Voice} voice */
function describe({ description, languages }) {
  return description || languages.map((code) => languageName(code, [])).join(", ");
}

/**
 * @param {Voice} voice
 * @param {boolean} selected
 * @param {string} list id of the list
 */
function optionOf(voice, selected, list) {
  const option = document.createElement("div");
  option.setAttribute("role", "option");
  option.setAttribute("aria-selected", String(selected));
  option.id = `${list}-${voice.name.replace(/[^a-z0-9]/gi, "_")}`;
  option.dataset.name = voice.name;
  // For pointers and fingers; keys have Alt Enter, because an option has no controls of its own.
  const hear = option.appendChild(document.createElement("b"));
  hear.className = "hear";
  hear.title = "Hear this voice (Alt Enter)";
  option.append(Object.assign(document.createElement("span"), { textContent: voice.name }));
  option.append(Object.assign(document.createElement("small"), { textContent: describe(voice) }));
  return option;
}
