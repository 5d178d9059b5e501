/** The documentation's pages: colours, search, contents, and a button to copy each block of code. */

import { make } from "./dom.js";
import { bindSearch } from "./search.js";
import { bindTheme } from "./theme.js";

const SHOWN_MS = 1_500;

bindTheme(/** @type {HTMLButtonElement} */ (document.getElementById("theme")), () => {});
bindSearch();
const contents = document.getElementById("contents");
if (contents && matchMedia("(max-width: 48rem)").matches) contents.removeAttribute("open"); // a telephone shows text first
for (const block of document.querySelectorAll("#page pre")) {
  const button = make("button", { type: "button", className: "quiet" }, "Copy");
  button.hidden = !navigator.clipboard; // pages by plain HTTP have none
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.textContent ?? "");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
  });
  const box = make("div", { className: "copied" });
  block.replaceWith(box);
  box.append(block, button);
  block.setAttribute("tabindex", "0");
}
