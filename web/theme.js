/** Light and dark: the system's choice until the button overrides it. */

import { recall, remember } from "./store.js";

/**
 * Apply the stored theme and let a button switch it.
 * @param {HTMLButtonElement} button
 * @param {() => void} onchange called after the colours have changed
 */
export function bindTheme(button, onchange) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = recall("theme");
  if (stored) root.dataset.theme = stored;

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    onchange();
  };

  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember("theme", root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}
