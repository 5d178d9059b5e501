/** A toggle button whose state is stored. */

import { recall, remember } from "./store.js";

/**
 * @param {HTMLElement} button
 * @param {string} name under which the choice is kept
 * @param {boolean} usual while nothing was chosen
 * @param {(on: boolean) => void} apply
 */
export function bindSwitch(button, name, usual, apply) {
  let on = recall(name) ?? usual;
  const show = () => {
    button.setAttribute("aria-pressed", String(on));
    apply(on);
  };
  button.addEventListener("click", () => {
    on = !on;
    remember(name, on);
    show();
  });
  show();
}
