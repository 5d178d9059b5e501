/** A toggle button whose state is stored. */

/**
 * @param {HTMLElement} button
 * @param {string} name under which the choice is kept
 * @param {boolean} usual while nothing was chosen
 * @param {(on: boolean) => void} apply
 */
export function bindSwitch(button, name, usual, apply) {
  const key = `agent_tts.${name}`;
  const stored = localStorage.getItem(key);
  let on = stored === null ? usual : stored === "on";
  const show = () => {
    button.setAttribute("aria-pressed", String(on));
    apply(on);
  };
  button.addEventListener("click", () => {
    on = !on;
    localStorage.setItem(key, on ? "on" : "off");
    show();
  });
  show();
}
