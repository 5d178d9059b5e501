/** The search of the documentation: the sections of all pages whose words have what is asked for. */

import { make } from "./dom.js";

/** @typedef {{ page: string, heading: string, address: string, text: string }} Section */

const MOST = 20; // sections that are shown
const BEFORE = 60; // characters of the text in front of the first word that was found
const SHOWN = 160; // characters of the text
// The pages as they are read, and as they are written.
const PAGES = new URL("../docs/", import.meta.url).href;
const TEXTS = new URL("docs/", import.meta.url).href;

/** @param {string} line of Markdown, outside of code */
const plain = (line) => line.replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/`|\*\*/g, "").replace(/^[-|\s:]+$|\|/g, " ");

/**
 * The sections of a page: each heading with the text up to the next.
 * @param {string} text Markdown
 * @param {string} address
 * @returns {Section[]}
 */
export function sections(text, address) {
  /** @type {Section[]} */
  const found = [];
  let code = false;
  for (const line of text.split("\n")) {
    const fence = line.startsWith("```");
    if (fence) code = !code;
    const raw = code ? undefined : /^#+ (.*)/.exec(line)?.[1];
    if (raw !== undefined) {
      const anchor = raw.toLowerCase().replace(/[^\p{L}\p{N}_\- ]/gu, "").replaceAll(" ", "-"); // as the node makes it
      const page = found[0]?.heading ?? plain(raw);
      found.push({ page, heading: plain(raw), address: `${address}#${anchor}`, text: "" });
    } else if (found.length && !fence) found[found.length - 1].text += `${code ? line : plain(line)} `;
  }
  return found;
}

/**
 * Those that have all words, in any case and as parts of longer words; first those whose headings have them.
 * @param {Section[]} all
 * @param {string[]} words in lower case
 */
export function matching(all, words) {
  /** @param {Section} section */
  const weight = ({ page, heading, text }) => {
    const places = [page, heading, text].map((place) => place.toLowerCase());
    const found = words.map((word) => places.reduce((sum, place, at) => sum + (place.includes(word) ? [3, 4, 1][at] : 0), 0));
    return found.includes(0) ? 0 : found.reduce((sum, one) => sum + one);
  };
  const weighed = all.map((section) => ({ section, weight: weight(section) })).filter(({ weight }) => weight);
  return weighed.sort((one, two) => two.weight - one.weight).map(({ section }) => section);
}

/**
 * A part of a section's text around the first word that was found, with all words marked.
 * @param {string} text
 * @param {string[]} words
 */
function excerpt(text, words) {
  text = text.replace(/\s+/g, " ").trim();
  const any = new RegExp(`(${words.map((word) => word.replace(/[^\p{L}\p{N} ]/gu, "\\$&")).join("|")})`, "giu");
  const from = Math.max(0, text.search(any) - BEFORE);
  const part = (from ? "…" : "") + text.slice(from, from + SHOWN) + (text.length > from + SHOWN ? "…" : "");
  return part.split(any).map((piece, at) => (at % 2 ? make("mark", {}, piece) : piece));
}

/** @returns {Promise<Section[]>} of all pages */
async function read() {
  const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("#pages a"));
  const pages = [`${PAGES}index.md`, ...[...links].map(({ href }) => href)];
  const found = pages.map(async (address) => {
    const answer = await fetch(address.replace(PAGES, TEXTS));
    if (!answer.ok) throw new Error(String(answer.status));
    return sections(await answer.text(), address);
  });
  return (await Promise.all(found)).flat();
}

/** Let the form in the head of the page search. */
export function bindSearch() {
  const form = /** @type {HTMLFormElement} */ (document.getElementById("search"));
  const input = /** @type {HTMLInputElement} */ (document.getElementById("words"));
  const box = /** @type {HTMLElement} */ (document.getElementById("found"));
  const [status, list] = box.children;
  /** @type {Promise<Section[]> | null} */
  let reading = null;

  const show = async () => {
    const asked = input.value;
    const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return void (box.hidden = true);
    let found;
    try {
      found = matching(await (reading ??= read()), words);
    } catch {
      reading = null;
    }
    if (input.value !== asked) return; // another answer is on its way
    status.textContent = !found
      ? "The pages could not be read. Type on to try again."
      : !found.length
        ? `No page has “${asked.trim()}”. Try fewer words, or a part of one.`
        : found.length > MOST
          ? `${MOST} of ${found.length} sections. More words find fewer.`
          : found.length === 1 ? "1 section" : `${found.length} sections`;
    const rows = (found ?? []).slice(0, MOST).map(({ page, heading, address, text }) => {
      const name = make("b", {}, heading === page ? page : `${page}: ${heading}`);
      return make("li", {}, make("a", { href: address }, name, make("br"), ...excerpt(text, words)));
    });
    list.replaceChildren(...rows);
    box.hidden = false;
  };

  const links = () => /** @type {HTMLElement[]} */ ([...list.querySelectorAll("a")]);
  form.hidden = false;
  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    links()[0]?.click();
  });
  form.addEventListener("focusout", ({ relatedTarget }) => {
    if (!form.contains(/** @type {Node | null} */ (relatedTarget))) box.hidden = true;
  });
  list.addEventListener("click", () => (box.hidden = true)); // the section may be on this page
  form.addEventListener("keydown", (event) => {
    const places = [input, ...links()];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && !box.hidden) {
      const at = places.indexOf(/** @type {HTMLElement} */ (document.activeElement));
      places[Math.min(Math.max(at + step, 0), places.length - 1)].focus();
      event.preventDefault();
    }
    if (event.key !== "Escape") return;
    input.value = "";
    input.focus();
    void show();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || document.activeElement === input) return;
    input.focus();
    event.preventDefault();
  });
}
