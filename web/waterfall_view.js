/** Draws the time to an answer: one row for each stage. */

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
  const row = document.createElement("div");
  row.dataset.stage = name;
  row.title = about;
  row.appendChild(document.createElement("dt")).textContent = label;
  const value = row.appendChild(document.createElement("dd"));
  const track = value.appendChild(document.createElement("span"));
  track.className = "track";
  const bar = track.appendChild(document.createElement("span"));
  bar.style.marginInlineStart = percent(fromMs, totalMs);
  bar.style.inlineSize = percent(toMs - fromMs, totalMs);
  value.appendChild(document.createElement("span")).textContent = `${Math.round(toMs - fromMs)} ms`;
  return row;
}

/**
 * @param {number} part
 * @param {number} whole
 */
function percent(part, whole) {
  return `${whole ? (100 * part) / whole : 0}%`;
}
