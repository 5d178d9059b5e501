/** Elements of the page: found, made, and shown for a moment. */

const FLASH_MS = 2_600;

/** When each flash ends. @type {WeakMap<HTMLElement, ReturnType<typeof setTimeout>>} */
const flashing = new WeakMap();

/**
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 */
export const at = (id) => /** @type {T} */ (document.getElementById(id));

/**
 * A new element.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name
 * @param {Record<string, any>} properties such as `className`; those of `dataset` are set one by one
 * @param {(Node | string)[]} contents
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(name, { dataset = {}, ...properties } = {}, ...contents) {
  const made = Object.assign(document.createElement(name), properties);
  Object.assign(made.dataset, dataset);
  made.append(...contents);
  return made;
}

/**
 * Show a time to silence for a moment.
 * @param {HTMLElement} place
 * @param {number} ms
 */
export function flashSilence(place, ms) {
  place.textContent = `silence in ${Math.round(ms)} ms`;
  place.dataset.on = "";
  clearTimeout(flashing.get(place));
  flashing.set(place, setTimeout(() => delete place.dataset.on, FLASH_MS));
}
