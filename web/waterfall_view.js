/** Draws the time to an answer: one row for each stage. */

import { make } from "./dom.js";
import { waterfall } from "./waterfall.js";

/**
 * @param {HTMLElement} list a `dl`, is filled anew
 * @param {import("./waterfall.js").Marks} marks
 * @returns {number} ms until the last mark
 */
export function showWaterfall(list, marks) {
  const bars = waterfall(marks);
  const totalMs = bars.at(-1)?.toMs ?? 0;
  list.replaceChildren(...bars.map((bar) => rowOf(bar, totalMs)));
  return totalMs;
}

/**
 * @param {import("./waterfall.js").Bar} bar
 * @param {number} totalMs
 */
function rowOf({ name, label, about, fromMs, toMs }, totalMs) {
  const bar = make("span");
  bar.style.marginInlineStart = percent(fromMs, totalMs);
  bar.style.inlineSize = percent(toMs - fromMs, totalMs);
  const track = make("span", { className: "track" }, bar);
  const value = make("dd", {}, track, make("span", {}, `${Math.round(toMs - fromMs)} ms`));
  return make("div", { title: about, dataset: { stage: name } }, make("dt", {}, label), value);
}

/**
 * @param {number} part
 * @param {number} whole
 */
function percent(part, whole) {
  return `${whole ? (100 * part) / whole : 0}%`;
}
